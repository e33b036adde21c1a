#include "server/tokenize_routes.h"

#include <exception>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/openai_types.h"

namespace quire {

namespace json = boost::json;

namespace {

// Ids are small; a body full of them may be long.
constexpr size_t kMaxTokens = 8 << 20;

HttpResponse refuse(const ApiError& error) {
  return error_response(error.status, error.param, error.code);
}
HttpResponse refuse(const Status& status, std::string_view param) {
  return error_response(status, param);
}

// The model is checked where it is named.
std::optional<HttpResponse> wrong_model(const ApiContext& context, const std::string& name) {
  const ApiResult<std::string> model = served_model(context, name);
  if (const ApiError* error = std::get_if<ApiError>(&model)) return refuse(*error);
  return std::nullopt;
}

Result<std::vector<int32_t>> tokenize_chat(const ApiContext& context, const HttpRequest& request, HttpResponse& error) {
  const ApiResult<ChatRequest> parsed = parse_chat_request(request.body, context.limits, {});
  if (const ApiError* wrong = std::get_if<ApiError>(&parsed)) {
    error = refuse(*wrong);
    return wrong->status;
  }
  auto ids = context.text.encode_chat(std::get<ChatRequest>(parsed).conversation);
  if (!ids.is_ok()) error = refuse(ids.status(), "messages");
  return ids;
}

HttpResponse tokenize(const ApiContext& context, const HttpRequest& request) {
  const Result<json::value> body = parse_json(request.body);
  if (!body.is_ok()) return refuse(body.status(), {});
  if (!body.value().is_object()) return refuse(invalid_argument("the body must be a JSON object"), {});
  const json::object& object = body.value().get_object();
  FieldReader reader(object);
  std::string model;
  bool adds_special = true;
  bool returns_strings = false;
  reader.read_string("model", model, context.limits.max_name_bytes);
  reader.read_bool("add_special_tokens", adds_special);
  reader.read_bool("return_token_strs", returns_strings);
  const json::value* prompt = reader.find("prompt");
  const bool has_messages = reader.find("messages") != nullptr;
  if (has_messages ? prompt != nullptr : prompt == nullptr || !prompt->is_string()) {
    reader.fail(prompt == nullptr ? "messages" : "prompt",
                invalid_argument("send a string as \"prompt\", or a conversation as \"messages\", not both"));
  }
  if (!reader.is_ok()) return refuse(reader.status(), reader.param());
  if (auto wrong = wrong_model(context, model)) return *std::move(wrong);

  HttpResponse error;
  Result<std::vector<int32_t>> ids = std::vector<int32_t>();
  if (has_messages) {
    ids = tokenize_chat(context, request, error);
    if (!ids.is_ok()) return error;
  } else {
    const std::string text(prompt->get_string());
    ids =
        adds_special ? context.text.encode_text(text) : context.text.tokenizer().encode(text, {.adds_bos_eos = false});
    if (!ids.is_ok()) return refuse(ids.status(), "prompt");
  }
  json::array tokens;
  tokens.reserve(ids.value().size());
  for (const int32_t id : ids.value()) tokens.emplace_back(id);
  json::object answer{{"count", ids.value().size()},
                      {"max_model_len", context.engine.limits().max_model_len},
                      {"tokens", std::move(tokens)},
                      {"token_strs", nullptr}};
  if (returns_strings) {
    json::array strings;
    for (const int32_t id : ids.value()) strings.emplace_back(valid_utf8(context.text.tokenizer().piece(id)));
    answer["token_strs"] = std::move(strings);
  }
  return {.body = json::serialize(answer)};
}

HttpResponse detokenize(const ApiContext& context, const HttpRequest& request) {
  const Result<json::value> body = parse_json(request.body);
  if (!body.is_ok()) return refuse(body.status(), {});
  if (!body.value().is_object()) return refuse(invalid_argument("the body must be a JSON object"), {});
  const json::object& object = body.value().get_object();
  FieldReader reader(object);
  std::string model;
  reader.read_string("model", model, context.limits.max_name_bytes);
  const json::value* tokens = reader.find("tokens");
  if (tokens == nullptr || !tokens->is_array() || tokens->get_array().size() > kMaxTokens) {
    reader.fail("tokens", invalid_argument("tokens must be a list of token ids"));
  }
  if (!reader.is_ok()) return refuse(reader.status(), reader.param());
  if (auto wrong = wrong_model(context, model)) return *std::move(wrong);

  std::vector<int32_t> ids;
  ids.reserve(tokens->get_array().size());
  const int64_t vocab_size = context.text.tokenizer().vocab_size();
  for (const json::value& one : tokens->get_array()) {
    int64_t id = 0;
    if (!read_integer(one, id) || id < 0 || id >= vocab_size) {
      return refuse(invalid_argument("tokens: " + shown_json(one) + " is not a token id of this model: they are 0 to " +
                                     std::to_string(vocab_size - 1)),
                    "tokens");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  const std::string text = context.text.tokenizer().decode(ids, {.skips_special = false});
  return {.body = json::serialize(json::object{{"prompt", text}})};
}

// In the text pool; a body may be long.
RouteHandler in_pool(std::shared_ptr<const ApiContext> context,
                     HttpResponse (*make)(const ApiContext&, const HttpRequest&)) {
  return [context = std::move(context), make](std::shared_ptr<HttpExchange> exchange) {
    const std::shared_ptr<TextStrand> strand = context->pool.create_strand();
    // The strand lives until its tasks have run: the pool holds it.
    const Status posted = strand->post_long(exchange->request().body.size(), [context, make, exchange] {
      if (exchange->is_closed()) return;
      try {
        exchange->respond(make(*context, exchange->request()));
      } catch (const std::exception& error) {
        exchange->respond(
            error_response(internal_error(std::string("the text could not be handled: ") + error.what())));
      }
    });
    if (!posted.is_ok()) exchange->respond(error_response(posted));
  };
}

}  // namespace

void register_tokenize_routes(RouteTable& routes, std::shared_ptr<const ApiContext> context) {
  routes.add({.method = "POST", .path = "/tokenize", .handler = in_pool(context, tokenize)});
  routes.add({.method = "POST", .path = "/detokenize", .handler = in_pool(context, detokenize)});
}

}  // namespace quire
