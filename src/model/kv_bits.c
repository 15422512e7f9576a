/* model/kv_bits.c: bits of keys and values for each attention layer, as KVTuner searches them, from a JSON file:
 *   {"k": [8, 4, ...], "v": [4, 2, ...]}
 * one number for each layer with a KV cache, in their order: 2, 4 or 8. Called by engines and programs. */
#include "ebb/model.h"
#include "model/json.h"

#include <stdlib.h>

enum { BITS_LIMIT = 1 << 20 };

static ebb_status read_list(const json_place *root, const char *key, int32_t n, int64_t *bits, ebb_error *error) {
    json_place list;
    ebb_status status = json_get_array(root, key, JSON_NEEDED, &list, error);
    if (status) return status;
    if (json_array_size(list.value) != (size_t)n)
        return json_fail(&list, error, EBB_BAD_FILE, "has %zu numbers; expected %d, one for each KV layer",
                         json_array_size(list.value), n);
    for (int32_t i = 0; i < n; i++) {
        json_place item;
        json_item(&list, (size_t)i, &item);
        bits[i] = json_is_integer(item.value) ? (int64_t)json_integer_value(item.value) : 0;
        if (bits[i] != 2 && bits[i] != 4 && bits[i] != 8)
            return json_fail(&item, error, EBB_BAD_FILE, "is no number of bits; expected 2, 4 or 8");
    }
    return EBB_OK;
}

ebb_status ebb_kv_bits_read(const char *path, int32_t layers, ebb_kv_bits **bits, ebb_error *error) {
    json_place root;
    int64_t *numbers = NULL;
    *bits = NULL;
    if (!path || layers < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "bits for %d KV layers from a file; expected 1 or more and its name",
                        layers);
    ebb_status status = json_open(path, BITS_LIMIT, &root, error);
    if (status) return status;
    const size_t n = (size_t)layers;
    numbers = calloc(2 * n, sizeof *numbers);
    *bits = calloc(n, sizeof **bits);
    if (!numbers || !*bits) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the bits of %d KV layers", layers);
    if (!status) status = read_list(&root, "k", layers, numbers, error);
    if (!status) status = read_list(&root, "v", layers, numbers + n, error);
    for (size_t i = 0; i < n && !status; i++) (*bits)[i] = (ebb_kv_bits){(int8_t)numbers[i], (int8_t)numbers[n + i]};
    if (status) free(*bits), *bits = NULL;
    free(numbers);
    json_close(&root);
    return status;
}
