// tests/cxx.cpp: the public headers as C++17. test_install.sh compiles it once for each of them: HEADER is the first
// and only header of ebb here, so each has to stand alone. It is the one C++ file of the tree.
#include HEADER

#include <cstdio>
#include <cstring>

static int failures;

static void expect(bool fact, const char *what) {
    if (fact) return;
    std::printf("%s: %s\n", HEADER, what);
    failures++;
}

int main() {
    ebb_error error = {};
    expect(ebb_fail(&error, EBB_BAD_FILE, "%d", 7) == EBB_BAD_FILE && !std::strcmp(error.text, "7"), "ebb_fail");
#ifdef EBB_STATE_H
    ebb_state_spec spec = {};
    const ebb_param window = EBB_PARAM_WINDOW;
    expect(ebb_state_parse("leap8:r=2", &spec, &error) == EBB_OK && spec.window == 16, "ebb_state_parse");
    expect(!std::strcmp(window.name, "p"), "EBB_PARAM_WINDOW");
#endif
#ifdef EBB_OP_H
    float logits[3] = {0, 2, 1};
    int32_t scratch[3];
    const ebb_sampling greedy = EBB_GREEDY, *there = &EBB_GREEDY;
    expect(ebb_sampling_check(there, &error) == EBB_OK, "EBB_GREEDY");
    expect(ebb_sample(&greedy, logits, 3, nullptr, 0, 0, scratch) == 1, "ebb_sample");
#endif
#ifdef EBB_MODEL_H
    ebb_model *model = nullptr;
    expect(ebb_model_open(nullptr, nullptr, nullptr, &model, &error) == EBB_BAD_ARGUMENT, "ebb_model_open");
#endif
#ifdef EBB_ENGINE_H
    ebb_engine *engine = nullptr;
    expect(ebb_engine_open(nullptr, nullptr, &engine, &error) == EBB_BAD_ARGUMENT, "ebb_engine_open");
#endif
    return failures;
}
