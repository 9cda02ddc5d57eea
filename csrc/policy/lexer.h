// Cuts the text of a policy into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace theseus::policy {

enum class TokenKind : uint8_t {
  End,
  Number,   // `value`
  Name,     // a field, a constant, a function, an attribute
  Quoted,   // an attribute's name between back quotes, whatever it looks like; `text` without them
  Keyword,  // if else and or not
  Symbol,
};

struct Token {
  TokenKind kind = TokenKind::End;
  std::string_view text;
  double value = 0;
  uint16_t column = 1;  // in bytes, from 1

  bool is(std::string_view word) const {
    return (kind == TokenKind::Keyword || kind == TokenKind::Symbol) && text == word;
  }
};

// InvalidArgument for a column of a policy.
Status fault_at(uint16_t column, const std::string& what);
// How a sentence calls a token: "'+'", "the end".
std::string quoted(const Token& token);

// Over a text of at most kLongestPolicy bytes, which outlives the tokens.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Result<Token> next();

 private:
  Result<Token> number();
  Result<Token> hexadecimal();
  Result<Token> quoted_name();
  Result<Token> symbol();
  Token token(TokenKind kind, size_t length);
  // The end of a number may not run into a name: 10X.
  Status check_end(size_t end, double& value, size_t& length) const;

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace theseus::policy
