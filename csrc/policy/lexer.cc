#include "policy/lexer.h"

#include <charconv>
#include <utility>

namespace theseus::policy {

namespace {

// Not <cctype>: that asks the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool continues_name(char c) { return is_letter(c) || is_digit(c) || c == '.' || c == ':'; }

constexpr std::string_view kKeywords[] = {"if", "else", "and", "or", "not"};
constexpr std::string_view kSymbols[] = {"<<", ">>", "<=", ">=", "==", "!=", "//", "<", ">", "|", "^",
                                         "&",  "+",  "-",  "*",  "/",  "%",  "(",  ")", "[", "]", ","};
// What people write who come from other languages.
constexpr std::pair<std::string_view, std::string_view> kHints[] = {
    {"&&", "'&&' is written 'and' here"},
    {"||", "'||' is written 'or' here"},
    {"**", "there are no powers here; write a product, or 1 << n"},
    {"=", "'=' sets nothing here; to compare, write '=='"},
    {"!", "'!' is written 'not' here"},
    {"~", "there is no '~' here; write 'not', or (x ^ mask)"},
    {"?", "choices are written 'a if condition else b' here"},
    {"\"", "there is no text here; names of collectives, dtypes and ops stand without quotes"},
    {"'", "there is no text here; names of collectives, dtypes and ops stand without quotes"},
};

std::string printable(char c) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (byte > 0x20 && byte < 0x7f) return std::string("'") + c + "'";
  return std::string("byte 0x") + kHex[byte >> 4] + kHex[byte & 15];
}

}  // namespace

Status fault_at(uint16_t column, const std::string& what) {
  return Status::argument("policy, column " + std::to_string(column) + ": " + what);
}

std::string quoted(const Token& token) {
  if (token.kind == TokenKind::End) return "the end";
  return "'" + std::string(token.text) + "'";
}

Token Lexer::token(TokenKind kind, size_t length) {
  Token token{kind, text_.substr(at_, length), 0, static_cast<uint16_t>(at_ + 1)};
  at_ += length;
  return token;
}

Result<Token> Lexer::next() {
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  if (at_ == text_.size()) return token(TokenKind::End, 0);
  const char c = text_[at_];
  if (is_digit(c) || (c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))) return number();
  if (c == '`') return quoted_name();
  if (!is_letter(c)) return symbol();
  size_t end = at_ + 1;
  while (end < text_.size() && continues_name(text_[end])) ++end;
  const std::string_view word = text_.substr(at_, end - at_);
  for (const std::string_view keyword : kKeywords) {
    if (word == keyword) return token(TokenKind::Keyword, word.size());
  }
  return token(TokenKind::Name, word.size());
}

Result<Token> Lexer::symbol() {
  const std::string_view rest = text_.substr(at_);
  for (const auto& [text, hint] : kHints) {
    if (rest.starts_with(text) && !rest.starts_with("==") && !rest.starts_with("!=")) {
      return fault_at(static_cast<uint16_t>(at_ + 1), std::string(hint));
    }
  }
  for (const std::string_view symbol : kSymbols) {
    if (rest.starts_with(symbol)) return token(TokenKind::Symbol, symbol.size());
  }
  return fault_at(static_cast<uint16_t>(at_ + 1), printable(rest[0]) + " is no part of a policy");
}

Result<Token> Lexer::quoted_name() {
  const size_t end = text_.find('`', at_ + 1);
  if (end == std::string_view::npos) {
    return fault_at(static_cast<uint16_t>(at_ + 1), "the back quote has no partner");
  }
  Token found = token(TokenKind::Quoted, end + 1 - at_);
  found.text = found.text.substr(1, found.text.size() - 2);
  if (found.text.empty()) return fault_at(found.column, "there is no name between the back quotes");
  for (const char c : found.text) {
    if (!continues_name(c) && c != '-') {
      return fault_at(found.column, "an attribute's name holds letters, digits and . _ - : but no " + printable(c));
    }
  }
  return found;
}

Status Lexer::check_end(size_t end, double& value, size_t& length) const {
  if (end < text_.size()) {
    const char suffix = text_[end];
    const double scale = suffix == 'K' ? 1024.0 : suffix == 'M' ? 1048576.0 : suffix == 'G' ? 1073741824.0 : 0.0;
    if (scale != 0) {
      value *= scale;
      ++end;
    }
  }
  if (end < text_.size() && (continues_name(text_[end]))) {
    return fault_at(static_cast<uint16_t>(end + 1),
                    "a number cannot go on with " + printable(text_[end]) + "; its suffixes are K, M and G");
  }
  if (value - value != 0) return fault_at(static_cast<uint16_t>(at_ + 1), "the number is beyond what a double holds");
  length = end - at_;
  return {};
}

Result<Token> Lexer::hexadecimal() {
  double value = 0;
  size_t end = at_ + 2;
  bool has_digit = false;
  for (; end < text_.size() && (is_hex(text_[end]) || (text_[end] == '_' && has_digit)); ++end) {
    const char c = text_[end];
    if (c == '_') {
      has_digit = false;  // one between digits
      continue;
    }
    has_digit = true;
    value = value * 16 + (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    // Past this, rounding step by step would not give the nearest double.
    if (value >= 9007199254740992.0) {
      return fault_at(static_cast<uint16_t>(at_ + 1), "a hexadecimal number must be below 2^53");
    }
  }
  if (!has_digit) return fault_at(static_cast<uint16_t>(at_ + 1), "the hexadecimal number lacks a digit at its end");
  size_t length = 0;
  THESEUS_TRY(check_end(end, value, length));
  Token found = token(TokenKind::Number, length);
  found.value = value;
  return found;
}

Result<Token> Lexer::number() {
  const auto peek = [this](size_t at) { return at < text_.size() ? text_[at] : '\0'; };
  if (text_[at_] == '0' && (peek(at_ + 1) == 'x' || peek(at_ + 1) == 'X')) return hexadecimal();
  std::string digits;  // without underscores
  size_t end = at_;
  const auto take_digits = [&] {
    while (is_digit(peek(end)) ||
           (peek(end) == '_' && end > at_ && is_digit(text_[end - 1]) && is_digit(peek(end + 1)))) {
      if (text_[end] != '_') digits += text_[end];
      ++end;
    }
  };
  take_digits();
  if (peek(end) == '.') {
    digits += text_[end++];
    take_digits();
  }
  if (peek(end) == 'e' || peek(end) == 'E') {
    const size_t sign = peek(end + 1) == '+' || peek(end + 1) == '-' ? 1 : 0;
    if (is_digit(peek(end + 1 + sign))) {
      digits += 'e';
      if (peek(end + 1) == '-') digits += '-';
      end += 1 + sign;
      take_digits();
    }
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || stop != digits.data() + digits.size()) {
    return fault_at(static_cast<uint16_t>(at_ + 1), "the number is beyond what a double holds");
  }
  size_t length = 0;
  THESEUS_TRY(check_end(end, value, length));
  Token found = token(TokenKind::Number, length);
  found.value = value;
  return found;
}

}  // namespace theseus::policy
