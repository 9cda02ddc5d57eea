// Transcript tests: a file of commands, each followed by what it answers; the test runs the commands and compares.
//
//     # a comment
//     command arguments
//     ----
//     what it answers, up to an empty line
//
// With THESEUS_UPDATE_TRANSCRIPTS set, files are rewritten with what was answered: read the difference.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace theseus {

// The words of a command line.
using Words = std::vector<std::string>;

inline Words words_of(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// Runs `file`, which stands beside this header, by `answer`: command line -> lines, each ended by a newline.
inline void run_transcript(const std::string& file, const std::function<std::string(const Words&)>& answer) {
  const std::filesystem::path path = std::filesystem::path(__FILE__).parent_path() / file;
  std::ifstream in(path);
  ASSERT_TRUE(in.good()) << "no transcript " << path;
  std::string expected, actual;
  int commands = 0;
  for (std::string line; std::getline(in, line);) {
    expected += line + '\n';
    actual += line + '\n';
    if (line.empty() || line[0] == '#') continue;
    ++commands;
    std::string old;
    for (std::string rest; std::getline(in, rest) && !rest.empty();) old += rest + '\n';
    expected += old + '\n';
    actual += "----\n" + answer(words_of(line)) + '\n';
  }
  EXPECT_GT(commands, 0) << path;
  if (std::getenv("THESEUS_UPDATE_TRANSCRIPTS") != nullptr) {
    std::ofstream(path) << actual;
  } else {
    EXPECT_EQ(expected, actual) << path << " differs; THESEUS_UPDATE_TRANSCRIPTS=1 rewrites it";
  }
}

}  // namespace theseus
