// Agreements by transcript: tests/unit/context/agreement_*.txt.
#include <gtest/gtest.h>

#include "unit/context/agreement_world.h"
#include "unit/context/random.h"
#include "unit/context/transcript.h"

namespace theseus {
namespace {

std::vector<uint64_t> numbers_of(const std::string& list) {
  std::vector<uint64_t> numbers;
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) numbers.push_back(std::stoull(one));
  return numbers;
}

// Answers the commands of one transcript.
class Script {
 public:
  std::string answer(const Words& words) {
    const std::string& command = words[0];
    if (command == "ranks") return make(words);
    if (command == "log") return extend(words);
    if (command == "fork") return fork(words);
    if (command == "reread") return relog(words, 9), "ok\n";
    if (command == "log-id") return relog(words, number(words, 2)), "ok\n";
    if (command == "read") return read(words);
    if (command == "load") return load(words);
    if (command == "propose") return propose(words);
    if (command == "cannot-run") return (*world_)[rank(words)].holdings.runs = false, "ok\n";
    if (command == "reach") return reach(words);
    if (command == "deliver") return deliver(words);
    if (command == "run") return or_none(world_->run());
    if (command == "quiet-run") return world_->run(), "ok\n";
    if (command == "wait") return world_->machine(rank(words)).must_wait(number(words, 2)) ? "waits\n" : "goes on\n";
    if (command == "next") return std::to_string(world_->machine(rank(words)).next_event()) + "\n";
    if (command == "under-way") return world_->machine(rank(words)).under_way() ? "yes\n" : "no\n";
    if (command == "take") return take(words);
    if (command == "inject") return inject(words);
    return "unknown command\n";
  }

 private:
  static int rank(const Words& words) { return std::stoi(words.at(1)); }
  static uint64_t number(const Words& words, size_t index) { return std::stoull(words.at(index)); }
  static std::string or_none(const std::string& text) { return text.empty() ? "nothing\n" : text; }

  std::string make(const Words& words) {
    std::vector<int> hosts;
    for (size_t i = 1; i < words.size(); ++i) hosts.push_back(std::stoi(words[i]));
    world_ = std::make_unique<AgreementWorld>(hosts);
    std::string lines;
    const std::vector<AgreementTree> trees = agreement_trees(hosts);
    for (size_t i = 0; i < trees.size(); ++i) {
      lines += std::to_string(i) + ": parent " + std::to_string(trees[i].parent) + ", children";
      for (const int child : trees[i].children) lines += " " + std::to_string(child);
      lines += "\n";
    }
    return lines;
  }
  // log schedule NAME | number NAME LENGTH | hook NAME | set NAME INDEX VALUE | remove NAME
  std::string extend(const Words& words) {
    if (words[1] == "schedule") {
      ScheduleDefinition schedule;
      schedule.name = words[2];
      schedule.algorithm = "ring";
      log_.push_back(schedule);
    } else if (words[1] == "number") {
      log_.push_back(exogenous(words[2], static_cast<uint32_t>(number(words, 3))));
    } else if (words[1] == "hook") {
      log_.push_back(hooked(words[2], Hook::Agreements));
    } else if (words[1] == "set") {
      log_.push_back(ExogenousUpdate{words[2], {{static_cast<uint32_t>(number(words, 3)), std::stod(words[4])}}});
    } else {
      log_.push_back(ScheduleRemoval{words[2]});
    }
    return "position " + std::to_string(log_.size()) + "\n";
  }
  void relog(const Words& words, uint64_t id) { (*world_)[rank(words)].holdings.log = ContextLog(id); }
  // fork RANK NAME: a record that nobody else has.
  std::string fork(const Words& words) {
    ContextLog& log = (*world_)[rank(words)].holdings.log;
    const Status status = log.apply(exogenous(words.at(2)));
    return status.ok() ? "position " + std::to_string(log.position()) + "\n" : status.message() + "\n";
  }
  std::string read(const Words& words) {
    ContextLog& log = (*world_)[rank(words)].holdings.log;
    while (log.position() < number(words, 2)) {
      if (const Status status = log.apply(log_.at(log.position())); !status.ok()) return status.message() + "\n";
    }
    return "position " + std::to_string(log.position()) + "\n";
  }
  std::string load(const Words& words) {
    for (const uint64_t id : numbers_of(words.at(2))) {
      (*world_)[rank(words)].holdings.loaded.set(static_cast<uint32_t>(id));
    }
    return text_of((*world_)[rank(words)].holdings.loaded) + "\n";
  }
  std::string propose(const Words& words) {
    (*world_)[rank(words)].holdings.next_k = static_cast<uint32_t>(number(words, 2));
    (*world_)[rank(words)].holdings.time_us = number(words, 3);
    return "ok\n";
  }
  std::string reach(const Words& words) {
    std::vector<AgreementMessage> messages = world_->machine(rank(words)).reach(number(words, 2));
    std::string lines;
    for (const AgreementMessage& message : messages) {
      lines += "-> " + std::to_string(message.to) + " " + text_of(*decode_note(message.bytes, world_->size())) + "\n";
    }
    world_->send(rank(words), std::move(messages));
    return or_none(lines);
  }
  std::string deliver(const Words& words) {
    return world_->deliver(rank(words), static_cast<int>(number(words, 2))).value_or("nothing") + "\n";
  }
  std::string take(const Words& words) {
    const std::unique_ptr<Decision> decision = world_->machine(rank(words)).take(number(words, 2));
    if (decision == nullptr) return "nothing\n";
    std::string lines = "agreement " + std::to_string(decision->agreement) + " at " +
                        std::to_string(decision->boundary) + ", next at " + std::to_string(decision->next_boundary) +
                        ", time " + std::to_string(decision->candidate.time_us) +
                        (decision->changed ? ", install\n" : ", nothing to install\n");
    if (decision->held_back_by >= 0) lines += "held back by rank " + std::to_string(decision->held_back_by) + "\n";
    if (decision->digests_differ) lines += "decoded differently\n";
    if (!decision->changed) return lines;
    const Snapshot& snapshot = *(*world_)[rank(words)].holdings.kept;
    for (const Attribute& attribute : snapshot.attributes) {
      lines += "attribute " + attribute.definition.name + " version " + std::to_string(attribute.version) + "\n";
    }
    for (const Schedule& schedule : snapshot.schedules) lines += "schedule " + schedule.definition.name + "\n";
    return lines;
  }
  // inject FROM TO KIND AGREEMENT [POSITION]: a message that the machines did not make, with the first history.
  std::string inject(const Words& words) {
    AgreementNote note;
    const std::vector<std::string> kinds = {"start", "offers", "candidate", "votes", "verdict"};
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (words.at(3) == kinds[i]) note.kind = static_cast<AgreementNote::Kind>(i);
    }
    note.agreement = number(words, 4);
    note.offer.log_id = 9;
    note.offer.position = words.size() > 5 ? number(words, 5) : 0;
    note.offer.lowest_rank = 0;
    return world_->inject(rank(words), static_cast<int>(number(words, 2)), encode(note)) + "\n";
  }

  std::unique_ptr<AgreementWorld> world_;
  std::vector<Record> log_;
};

void run_script(const std::string& file) {
  Script script;
  run_transcript(file, [&script](const Words& words) { return script.answer(words); });
}

// The paper's Figure 8: both install what both hold.
TEST(AgreementTranscript, FigureEight) { run_script("agreement_figure_8.txt"); }
// From the first agreement on: boundaries, lags, who sends what to whom over two hosts.
TEST(AgreementTranscript, Rounds) { run_script("agreement_rounds.txt"); }
// A rank whose program is elsewhere takes part all the same, and installs when it gets there.
TEST(AgreementTranscript, Laggard) { run_script("agreement_laggard.txt"); }
// What keeps a candidate from being installed, and that the old context stays.
TEST(AgreementTranscript, HeldBack) { run_script("agreement_held_back.txt"); }
// Messages that no honest peer sends.
TEST(AgreementTranscript, Refusals) { run_script("agreement_refusals.txt"); }

}  // namespace
}  // namespace theseus
