#include "compiler/healed_arguments.h"

#include <algorithm>
#include <numeric>

namespace theseus {
namespace {

Status refuse(const std::string& what) { return Status::argument("healed: " + what); }

std::string in_words(int64_t value) { return std::to_string(value); }

// Reads "name=value;name=value;..."; every list's length is known before it is read.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<HealedArguments> run() {
    if (rest_.size() > kLongestHealedArguments) {
      return refuse("the arguments are " + in_words(static_cast<int64_t>(rest_.size())) + " bytes long; at most " +
                    in_words(kLongestHealedArguments) + " are possible");
    }
    while (!rest_.empty()) THESEUS_TRY(field());
    THESEUS_TRY(need_shape("shares or quotas"));
    if (made_.variants.empty()) made_.variants.emplace_back();
    for (const HealedVariant& variant : made_.variants) THESEUS_TRY(check(variant));
    return std::move(made_);
  }

 private:
  Status field() {
    const std::string_view whole = rest_.substr(0, rest_.find(';'));
    rest_.remove_prefix(std::min(rest_.size(), whole.size() + 1));
    const size_t equals = whole.find('=');
    if (equals == std::string_view::npos) {
      return refuse("'" + std::string(whole.substr(0, 32)) + "' is no field; one looks like hosts=4");
    }
    name_ = std::string(whole.substr(0, std::min<size_t>(equals, 32)));
    const std::string_view value = whole.substr(equals + 1);
    if (name_ == "hosts") return number(value, 2, kMostHealedHosts, made_.hosts);
    if (name_ == "rails") return number(value, 1, kMostHealedRails, made_.rails);
    if (name_ == "chunks") return number(value, 1, kMostHealedChunks, made_.chunks);
    THESEUS_TRY(need_shape(name_));
    const auto hosts = static_cast<size_t>(made_.hosts);
    const auto rails = static_cast<size_t>(made_.rails);
    if (name_ == "root") return begin_variant(value);
    if (made_.variants.empty()) made_.variants.emplace_back();
    HealedVariant& variant = made_.variants.back();
    if (name_ == "shares") return list(value, hosts, kMostHealedChunks, variant.shares);
    if (name_ == "quotas") return list(value, hosts * (hosts - 1) * rails, kMostQuotas, variant.quotas);
    if (name_ == "out") return list(value, hosts * rails, kMostWeight, variant.out);
    if (name_ == "in") return list(value, hosts * rails, kMostWeight, variant.in);
    return refuse("there is no field '" + name_ + "'; there are hosts, rails, chunks, root, shares, quotas, out, in");
  }

  Status need_shape(const std::string& before) const {
    if (made_.hosts == 0 || made_.rails == 0 || made_.chunks == 0) {
      return refuse("hosts, rails and chunks must come before " + before);
    }
    if (int64_t{made_.hosts} * made_.hosts * made_.rails > kMostQuotas) {
      return refuse(in_words(made_.hosts) + " hosts of " + in_words(made_.rails) + " rails are too many");
    }
    return {};
  }

  Status begin_variant(std::string_view value) {
    int root = -1;
    THESEUS_TRY(number(value, 0, made_.hosts - 1, root, true));
    for (const HealedVariant& known : made_.variants) {
      if (known.root_host < 0) return refuse("root must come before the shares and quotas that hold for it");
      if (known.root_host == root) return refuse("root host " + in_words(root) + " comes twice");
    }
    made_.variants.emplace_back().root_host = root;
    return {};
  }

  Status number(std::string_view value, int least, int most, int& out, bool again = false) {
    if (out != 0 && !again) return refuse("'" + name_ + "' comes twice");
    const bool read = digits(value, out) && value.empty();
    if (read && out >= least && out <= most) return {};
    return refuse("'" + name_ + "' must be a number from " + in_words(least) + " to " + in_words(most));
  }

  // Takes up to seven digits from the front of `text`.
  static bool digits(std::string_view& text, int& out) {
    int value = 0;
    size_t length = 0;
    while (length < text.size() && text[length] >= '0' && text[length] <= '9') {
      if (length == 7) return false;
      value = value * 10 + (text[length++] - '0');
    }
    text.remove_prefix(length);
    out = value;
    return length > 0;
  }

  Status list(std::string_view value, size_t length, int most, std::vector<int32_t>& out) const {
    if (!out.empty()) return refuse("'" + name_ + "' comes twice");
    const std::string expected =
        "'" + name_ + "' must be " + in_words(static_cast<int64_t>(length)) + " numbers from 0 to " + in_words(most);
    out.reserve(length);
    while (!value.empty()) {
      int number = 0;
      int times = 1;
      if (!digits(value, number) || number > most) return refuse(expected);
      if (!value.empty() && value.front() == 'x') {
        value.remove_prefix(1);
        if (!digits(value, times)) return refuse(expected);
      }
      if (static_cast<size_t>(times) > length - out.size()) return refuse(expected);
      out.insert(out.end(), static_cast<size_t>(times), number);
      if (value.empty()) break;
      if (value.front() != ',') return refuse(expected);
      value.remove_prefix(1);
      if (value.empty()) return refuse(expected);
    }
    return out.size() == length ? Status() : refuse(expected);
  }

  Status check(const HealedVariant& variant) const {
    const bool weighted = !variant.out.empty() || !variant.in.empty();
    if (weighted == !variant.quotas.empty()) return refuse("it takes either quotas, or the weights out and in");
    if (weighted && (variant.out.empty() || variant.in.empty())) return refuse("weights out and in go together");
    const int64_t sum = std::accumulate(variant.shares.begin(), variant.shares.end(), int64_t{0});
    if (!variant.shares.empty() && sum != made_.chunks) {
      return refuse("the shares add up to " + in_words(sum) + ", not to the " + in_words(made_.chunks) + " chunks");
    }
    return {};
  }

  std::string_view rest_;
  std::string name_;
  HealedArguments made_;
};

// Rounds the messages of pair after pair; what a NIC got too much or too little is carried on to its next pair.
class Rounding {
 public:
  Rounding(const HealedArguments& arguments, const HealedVariant& variant)
      : variant_(variant),
        rails_(static_cast<size_t>(arguments.rails)),
        out_error_(variant.out.size(), 0),
        in_error_(variant.in.size(), 0),
        ideal_(rails_),
        order_(rails_) {}

  // False where no rail joins the two.
  bool pair(size_t from, size_t to, int64_t messages, int32_t* quotas) {
    const int32_t* out = &variant_.out[from * rails_];
    const int32_t* in = &variant_.in[to * rails_];
    int64_t total = 0;
    for (size_t r = 0; r < rails_; ++r) total += int64_t{out[r]} * in[r];
    if (messages == 0 || total == 0) return messages == 0;
    int64_t left = messages;
    order_.clear();
    for (size_t r = 0; r < rails_; ++r) {
      ideal_[r] = messages * kUnit * (int64_t{out[r]} * in[r]) / total;
      quotas[r] = static_cast<int32_t>(ideal_[r] / kUnit);
      left -= quotas[r];
      if (ideal_[r] > 0) order_.push_back(r);
    }
    const auto owed = [&](size_t r) {
      return ideal_[r] % kUnit + out_error_[from * rails_ + r] + in_error_[to * rails_ + r];
    };
    const auto turn = [&](size_t r) { return (r + from + to) % rails_; };
    std::sort(order_.begin(), order_.end(),
              [&](size_t a, size_t b) { return owed(a) != owed(b) ? owed(a) > owed(b) : turn(a) < turn(b); });
    for (size_t n = 0; left > 0; ++n, --left) ++quotas[order_[n % order_.size()]];
    for (size_t r = 0; r < rails_; ++r) {
      out_error_[from * rails_ + r] += ideal_[r] - quotas[r] * kUnit;
      in_error_[to * rails_ + r] += ideal_[r] - quotas[r] * kUnit;
    }
    return true;
  }

 private:
  static constexpr int64_t kUnit = 1 << 14;  // of a message
  const HealedVariant& variant_;
  const size_t rails_;
  std::vector<int64_t> out_error_;
  std::vector<int64_t> in_error_;
  std::vector<int64_t> ideal_;
  std::vector<size_t> order_;
};

std::string pair_name(size_t from, size_t to) {
  return "from host " + std::to_string(from) + " to host " + std::to_string(to);
}

}  // namespace

Result<HealedArguments> parse_healed(std::string_view text) { return Reader(text).run(); }

std::vector<int64_t> messages_between(const HealedArguments& arguments, const HealedVariant& variant,
                                      Collective collective, int ranks_per_host) {
  const int hosts = arguments.hosts;
  std::vector<int64_t> messages(static_cast<size_t>(hosts) * static_cast<size_t>(hosts), 0);
  const auto share = [&](int host) { return int64_t{variant.shares[static_cast<size_t>(host)]}; };
  for (int i = 0; i < hosts; ++i) {
    for (int j = 0; j < hosts; ++j) {
      if (i == j) continue;
      int64_t& pair = messages[static_cast<size_t>(i * hosts + j)];
      switch (collective) {
        case Collective::AllReduce: pair = share(i) + share(j); break;
        case Collective::Broadcast:
          pair = j == variant.root_host ? 0 : share(i) + (i == variant.root_host ? share(j) : 0);
          break;
        case Collective::AllToAll: pair = int64_t{ranks_per_host} * ranks_per_host * arguments.chunks; break;
        default: pair = int64_t{ranks_per_host} * arguments.chunks; break;
      }
    }
  }
  return messages;
}

Result<std::vector<int32_t>> quotas_of(const HealedArguments& arguments, const HealedVariant& variant,
                                       const std::vector<int64_t>& messages) {
  const auto hosts = static_cast<size_t>(arguments.hosts);
  const auto rails = static_cast<size_t>(arguments.rails);
  std::vector<int32_t> quotas(hosts * hosts * rails, 0);
  Rounding rounding(arguments, variant);
  auto given = variant.quotas.begin();
  for (size_t i = 0; i < hosts; ++i) {
    for (size_t j = 0; j < hosts; ++j) {
      if (i == j) continue;
      int32_t* row = &quotas[(i * hosts + j) * rails];
      const int64_t wanted = messages[i * hosts + j];
      if (variant.quotas.empty()) {
        if (!rounding.pair(i, j, wanted, row)) return refuse("no rail has a weight " + pair_name(i, j));
        continue;
      }
      std::copy_n(given, rails, row);
      given += static_cast<std::ptrdiff_t>(rails);
      const int64_t sum = std::accumulate(row, row + rails, int64_t{0});
      if (sum != wanted) {
        return refuse(in_words(wanted) + " messages go " + pair_name(i, j) + ", but their quotas add up to " +
                      in_words(sum));
      }
    }
  }
  return quotas;
}

}  // namespace theseus
