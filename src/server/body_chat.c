/* server/body_chat.c: messages and tools of a chat (body.h). Called by body.c. Messages are rewritten as templates
 * expect them: texts instead of arrays of parts, arguments of earlier calls as objects instead of texts of JSON. */
#include "server/body_int.h"
#include "core/core.h"
#include "server/answer_parts.h"

#include <string.h>

enum { MOST_MESSAGES = 4096, MOST_TOOLS = 256 };

static ebb_status bad_message(size_t i, const char *what, ebb_error *error) {
    return ebb_fail(error, EBB_BAD_ARGUMENT, "'messages' number %zu: %s", i + 1, what);
}

/* [{"type": "text", "text": ...}, ...] as one text. */
static ebb_status join_parts(const json_t *parts, size_t message, json_t **text, ebb_error *error) {
    text_buffer all = {0};
    const json_t *part;
    size_t i;
    bool good = text_add(&all, "", 0);
    json_array_foreach((json_t *)parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *own = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(own)) {
            text_free(&all);
            return bad_message(message, "only parts of type text are served", error);
        }
        good = good && text_add(&all, json_string_value(own), json_string_length(own));
    }
    *text = good ? json_stringn(all.data, all.bytes) : NULL;
    text_free(&all);
    return *text ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
}

/* Arguments that are a text of a JSON object become that object. */
static ebb_status open_arguments(json_t *calls, size_t message, ebb_error *error) {
    json_t *call;
    size_t i;
    if (!json_is_array(calls)) return bad_message(message, "tool_calls must be an array", error);
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")))
            return bad_message(message, "a call of tool_calls needs function.name, a text", error);
        if (!json_is_string(arguments)) continue;
        json_t *object = json_loads(json_string_value(arguments), 0, NULL);
        if (json_is_object(object)) {
            if (json_object_set_new(function, "arguments", object))
                return ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
        } else json_decref(object);
    }
    return EBB_OK;
}

static ebb_status read_message(json_t *message, size_t i, ebb_error *error) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content"), *calls = body_member(message, "tool_calls"), *text = NULL;
    bool known = false;
    ebb_status status = EBB_OK;
    for (int32_t k = 0; k < COUNT(roles) && role; k++) known |= strcmp(role, roles[k]) == 0;
    if (!known) return bad_message(i, "role must be system, developer, user, assistant or tool", error);
    if (strcmp(role, "developer") == 0 && json_object_set_new(message, "role", json_string("system")))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
    if (json_is_array(content)) {
        if ((status = join_parts(content, i, &text, error))) return status;
        if (json_object_set_new(message, "content", text))
            return ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
    } else if (!json_is_string(content) && !(json_is_null(content) || (!content && calls)))
        return bad_message(i, "content must be a text or an array of parts", error);
    else if (!json_is_string(content)) { /* templates join texts */
        if (strcmp(role, "assistant") != 0) return bad_message(i, "content must be a text or an array of parts", error);
        if (json_object_set_new(message, "content", json_string("")))
            return ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
    }
    return calls ? open_arguments(calls, i, error) : EBB_OK;
}

static ebb_status read_messages(api_request *r, ebb_error *error) {
    const json_t *all = body_member(r->root, "messages");
    json_t *one;
    size_t i;
    if (!json_is_array(all) || !json_array_size(all) || json_array_size(all) > MOST_MESSAGES)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'messages' must be an array of 1 to %d messages", MOST_MESSAGES);
    if (!(r->messages = json_deep_copy(all))) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the messages");
    json_array_foreach(r->messages, i, one) {
        const ebb_status status =
            json_is_object(one) ? read_message(one, i, error) : bad_message(i, "a message must be an object", error);
        if (status) return status;
    }
    return EBB_OK;
}

/* ---- tools ---- */

static const char *tool_name(const json_t *tool) {
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static ebb_status check_tools(const json_t *tools, ebb_error *error) {
    const json_t *tool;
    size_t i;
    if (!json_is_array(tools) || json_array_size(tools) > MOST_TOOLS)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'tools' must be an array of at most %d tools", MOST_TOOLS);
    json_array_foreach((json_t *)tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type")), *name = tool_name(tool);
        const json_t *parameters = body_member(json_object_get(tool, "function"), "parameters");
        if (!type || strcmp(type, "function") != 0 || !name || !*name || strlen(name) > 256)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "'tools' number %zu must have type function and function.name, a text of 1 to 256 bytes",
                            i + 1);
        if (parameters && !json_is_object(parameters))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'tools' number %zu: parameters must be a schema, an object",
                            i + 1);
    }
    return EBB_OK;
}

static ebb_status read_choice(api_request *r, const json_t *choice, ebb_error *error) {
    static const char *const names[] = {[TOOLS_AUTO] = "auto", [TOOLS_NONE] = "none", [TOOLS_REQUIRED] = "required"};
    const char *word = json_string_value(choice);
    for (int32_t i = 0; word && i < COUNT(names); i++) {
        if (strcmp(word, names[i]) != 0) continue;
        r->choice = (tool_choice)i;
        return EBB_OK;
    }
    r->tool_name = tool_name(choice);
    r->choice = TOOLS_NAMED;
    if (r->tool_name) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "'tool_choice' must be auto, none, required, or name a function");
}

static ebb_status read_tools(api_request *r, ebb_error *error) {
    json_t *tools = body_member(r->root, "tools"), *choice = body_member(r->root, "tool_choice"), *tool;
    bool there = false;
    size_t i;
    ebb_status status = EBB_OK;
    const json_t *parallel = body_member(r->root, "parallel_tool_calls");
    if (parallel && !json_is_boolean(parallel))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'parallel_tool_calls' must be true or false");
    r->one_call = json_is_false(parallel);
    if (tools && (status = check_tools(tools, error))) return status;
    if (choice && (status = read_choice(r, choice, error))) return status;
    if (json_array_size(tools) && r->choice != TOOLS_NONE) r->tools = tools;
    if (r->choice < TOOLS_REQUIRED) return EBB_OK;
    if (!r->tools) return ebb_fail(error, EBB_BAD_ARGUMENT, "'tool_choice' asks for a call, but there are no 'tools'");
    if (r->form != FORM_TEXT)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "'tool_choice' asks for a call and 'response_format' for JSON: one of them can be had");
    json_array_foreach(r->tools, i, tool) there |=
        r->choice != TOOLS_NAMED || strcmp(tool_name(tool), r->tool_name) == 0;
    r->form = FORM_CALL;
    if (there) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "'tool_choice' names the function '%.80s', which 'tools' does not have",
                    r->tool_name);
}

/* ---- the rest ---- */

static ebb_status read_variables(api_request *r, ebb_error *error) {
    const json_t *given = body_member(r->root, "chat_template_kwargs");
    json_t *effort = body_member(r->root, "reasoning_effort");
    if (given && !json_is_object(given))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'chat_template_kwargs' must be an object");
    if (effort && !json_is_string(effort))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'reasoning_effort' must be a text");
    if (!given && !effort) return EBB_OK;
    r->variables = given ? json_deep_copy(given) : json_object();
    if (!r->variables || (effort && json_object_set(r->variables, "reasoning_effort", effort)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the variables of the template");
    return EBB_OK;
}

ebb_status body_chat(api_request *r, ebb_error *error) {
    const json_t *format = body_member(r->root, "reasoning_format"), *kinds = body_member(r->root, "modalities");
    const char *name = json_string_value(format), *kind = json_string_value(json_array_get(kinds, 0));
    ebb_status status;
    if (format && (!name || (strcmp(name, "auto") != 0 && strcmp(name, "none") != 0)))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'reasoning_format' must be auto or none");
    if (kinds && (json_array_size(kinds) != 1 || !kind || strcmp(kind, "text") != 0))
        return ebb_fail(error, EBB_UNSUPPORTED, "'modalities' is served as [\"text\"] only");
    r->split_reasoning = !name || strcmp(name, "none") != 0;
    if ((status = read_messages(r, error)) || (status = read_tools(r, error))) return status;
    return read_variables(r, error);
}
