/* test_eval_cli.c: `ebb eval` and `ebb reproduce` from outside: what they print and keep, that kept cells are taken and
 * others are not, and Ctrl-C. Skipped where the program beside this test's folder was not built. */
#define _GNU_SOURCE
#include "core/core.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PURE SOURCE_DIR "/models/tiny-gdn-pure"
#define COPIES SOURCE_DIR "/models/eval/copy-80.jsonl"
#define BOOKS SOURCE_DIR "/models/eval/heldout_books.txt"

typedef struct place {
    char program[512], folder[64];
} place;

static int set_up(void **state) {
    static place p; /* of this test program, which runs one group */
    char self[400] = "";
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    *strrchr(self, '/') = '\0';
    snprintf(p.program, sizeof p.program, "%s/../ebb", self);
    snprintf(p.folder, sizeof p.folder, "/tmp/ebb-eval-XXXXXX");
    assert_non_null(mkdtemp(p.folder));
    *state = &p;
    return 0;
}

static int tear_down(void **state) {
    const place *p = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", p->folder);
    return system(command);
}

/* The exit code; what is printed, at most `room` - 1 bytes of it. */
static int run(const place *p, const char *arguments, char *out, size_t room) {
    char command[2048];
    if (access(p->program, X_OK)) skip();
    snprintf(command, sizeof command, "cd %s && %s %s 2>err", p->folder, p->program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t n = fread(out, 1, room - 1, pipe);
    out[n] = '\0';
    while (fgetc(pipe) != EOF) {
    }
    const int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_refusals(void **state) {
    const place *p = *state;
    char out[16384];
    assert_int_equal(run(p, "eval --help", out, sizeof out), 0);
    assert_true(strncmp(out, "usage: ebb eval ", 16) == 0);
    assert_int_equal(run(p, "reproduce --help", out, sizeof out), 0);
    assert_int_equal(run(p, "eval", out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE, out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE " --task " COPIES " --state int3", out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE " --text " BOOKS " --parts mess", out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE " --text " BOOKS " -n 10 --prompt 10", out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE " --task a/x.jsonl,b/x.jsonl", out, sizeof out), 2);
    assert_int_equal(run(p, "eval -m " PURE " --task /no/such.jsonl", out, sizeof out), 1);
    assert_int_equal(run(p, "eval -m " PURE " --text " BOOKS " -n 4000000", out, sizeof out), 1);
    assert_int_equal(run(p, "eval -m " PURE " --task " COPIES " --limit 1 --state damp", out, sizeof out), 1);
    assert_int_equal(run(p, "reproduce -m " PURE, out, sizeof out), 2);
    assert_int_equal(run(p, "reproduce -m " PURE " --tasks " COPIES " --paper other", out, sizeof out), 2);
}

static struct stat look(const place *p, const char *name) {
    char path[256];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    if (stat(path, &s)) fail_msg("%s is not there", path);
    return s;
}

/* A cell with the same key is taken as it is; another limit makes it anew. Files are replaced, so the inode tells. */
static void test_cells(void **state) {
    const place *p = *state;
    char first[16384], again[16384];
    const char *command = "eval -m " PURE " --task " COPIES " --limit 2 --state int8,leap8 -o cells";
    assert_int_equal(run(p, command, first, sizeof first), 0);
    assert_non_null(strstr(first, "| fp32 "));
    assert_non_null(strstr(first, "| leap8 "));
    const struct stat before = look(p, "cells/task-copy-80.jsonl-leap8.json");
    look(p, "cells/eval.json"), look(p, "cells/eval.md"), look(p, "cells/task-copy-80.jsonl.svg");
    assert_int_equal(run(p, command, again, sizeof again), 0);
    assert_string_equal(first, again);
    assert_true(before.st_ino == look(p, "cells/task-copy-80.jsonl-leap8.json").st_ino);
    assert_int_equal(
        run(p, "eval -m " PURE " --task " COPIES " --limit 1 --state int8,leap8 -o cells", again, sizeof again), 0);
    assert_non_null(strstr(again, "1 problem"));
    assert_true(before.st_ino != look(p, "cells/task-copy-80.jsonl-leap8.json").st_ino);
}

static void test_json(void **state) {
    const place *p = *state;
    char out[65536];
    assert_int_equal(
        run(p, "eval -m " PURE " --text " BOOKS " -n 160 --every 80 --state fp32,leap4 --json", out, sizeof out), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    const json_t *nll = json_object_get(json_object_get(json_object_get(root, "nll"), "heldout_books.txt"), "leap4"),
                 *mark = json_array_get(json_object_get(nll, "marks"), 1),
                 *in =
                     json_object_get(json_object_get(json_object_get(root, "injected"), "heldout_books.txt"), "leap4");
    assert_int_equal(json_integer_value(json_object_get(mark, "to")), 159);
    assert_true(json_real_value(json_object_get(mark, "kl")) > 0);
    assert_int_equal(json_integer_value(json_object_get(in, "states")), 2);
    assert_true(json_real_value(json_object_get(in, "rms")) > 0);
    json_decref(root);
}

static void test_reproduce(void **state) {
    const place *p = *state;
    char out[65536];
    assert_int_equal(run(p,
                         "reproduce -m " PURE " --tasks " SOURCE_DIR
                         "/tests/data/tasks/aime.jsonl --paper damp --limit 1 "
                         "--state fp32,int8 --seeds 2 --answer 4 --json",
                         out, sizeof out),
                     0);
    json_t *root = json_loads(out, 0, NULL);
    const json_t *sampling = json_object_get(root, "sampling"),
                 *cell = json_object_get(json_object_get(json_object_get(root, "tasks"), "aime.jsonl"), "int8");
    assert_int_equal(json_integer_value(json_object_get(sampling, "top_k")), 20);
    assert_int_equal(json_integer_value(json_object_get(cell, "runs")), 2);
    json_decref(root);
}

/* Interrupted after the first cell, it prints that cell, and keeps it. */
static void test_interrupt(void **state) {
    const place *p = *state;
    char path[256], out[8192] = "";
    if (access(p->program, X_OK)) skip();
    snprintf(path, sizeof path, "%s/stopped/task-copy-80.jsonl-fp32.json", p->folder);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(p->folder) || !freopen("stopped.md", "w", stdout) || !freopen("err", "w", stderr)) _exit(9);
        execl(p->program, "ebb", "eval", "-m", PURE, "--task", COPIES, "--limit", "4", "--state",
              "fp32,int8,turboquant8,turboquant6,turboquant4,kvquant8,kvquant6,kvquant4", "-o", "stopped",
              (char *)NULL);
        _exit(9);
    }
    for (int32_t i = 0; i < 6000 && access(path, F_OK); i++) nanosleep(&(struct timespec){0, 10000000}, NULL);
    kill(child, SIGINT);
    int status;
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    snprintf(path, sizeof path, "%s/stopped.md", p->folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, sizeof out - 1, f)] = '\0';
    fclose(f);
    assert_non_null(strstr(out, "| fp32 "));
    assert_null(strstr(out, "| kvquant4 "));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals), cmocka_unit_test(test_cells),
                                       cmocka_unit_test(test_json), cmocka_unit_test(test_reproduce),
                                       cmocka_unit_test(test_interrupt)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
