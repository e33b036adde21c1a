# Structured output: grammars, their matchers, and what they are compiled from. Included by CMakeLists.txt.
quire_library(quire_grammar
  grammar.cc
  grammar_builder.cc
  grammar_cache.cc
  grammar_character_class.cc
  grammar_compile.cc
  grammar_configurations.cc
  grammar_decimal.cc
  grammar_ebnf.cc
  grammar_formats.cc
  grammar_free_text.cc
  grammar_json.cc
  grammar_left_recursion.cc
  grammar_lowering.cc
  grammar_matcher.cc
  grammar_nodes.cc
  grammar_regex.cc
  grammar_regex_parser.cc
  grammar_schema.cc
  grammar_schema_array.cc
  grammar_schema_document.cc
  grammar_schema_members.cc
  grammar_schema_merge.cc
  grammar_schema_object.cc
  grammar_schema_string.cc
  grammar_state_graph.cc
  grammar_token_sets.cc
  grammar_vocabulary.cc)
target_include_directories(quire_grammar SYSTEM PRIVATE ${UTF8PROC_INCLUDE_DIR})
target_link_libraries(quire_grammar PUBLIC quire_base quire_text_tokenizer PRIVATE ${UTF8PROC_LIBRARY} Boost::json)
target_link_libraries(quire_text INTERFACE quire_grammar)

quire_test(text_grammar_test
  SOURCES grammar_ebnf_test.cc grammar_matcher_test.cc grammar_regex_test.cc grammar_schema_test.cc grammar_work_test.cc
  LIBS quire_grammar)
quire_fuzzer(grammar_source_fuzz SOURCES grammar_source_fuzz.cc LIBS quire_grammar)
quire_fuzzer(grammar_matcher_fuzz SOURCES grammar_matcher_fuzz.cc LIBS quire_grammar)
