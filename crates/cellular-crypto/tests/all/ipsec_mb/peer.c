// intel-ipsec-mb as a second implementation of 128-NEA and 128-NIA 1 to 3, for tests and for a comparison of speed.
//
//   peer ARCH check                            jobs from standard input, results to standard output
//   peer ARCH bench ALGORITHM KIND SIZE JOBS MILLISECONDS    ns per byte, the fastest of many runs
//
// ARCH: sse, avx2, avx512, single (the library's single-buffer calls, with its best instructions).
// ALGORITHM: 1 to 3. KIND: 0 ciphers, 1 authenticates. The input is the number of jobs (4 bytes, little-endian), and the jobs:
// ALGORITHM and KIND in a byte each, bits (4 bytes, little-endian), key, IV, message.
#include <intel-ipsec-mb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct job {
    uint8_t algorithm, kind;
    uint32_t bits;
    uint8_t key[16], iv[16];
    uint8_t *message; // starts 16 bytes into the allocation, with room for 128-NIA2's prefix
    uint8_t tag[16];
    // Expanded.
    snow3g_key_schedule_t *snow;
    DECLARE_ALIGNED(uint32_t encrypt[60], 16);
    DECLARE_ALIGNED(uint32_t decrypt[60], 16);
    DECLARE_ALIGNED(uint32_t first[4], 16);
    DECLARE_ALIGNED(uint32_t second[4], 16);
};

static void *room(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes)) abort();
    memset(memory, 0, bytes);
    return memory;
}

static void expand(IMB_MGR *manager, struct job *job) {
    job->snow = room(IMB_SNOW3G_KEY_SCHED_SIZE(manager));
    IMB_SNOW3G_INIT_KEY_SCHED(manager, job->key, job->snow);
    IMB_AES_KEYEXP_128(manager, job->key, job->encrypt, job->decrypt);
    IMB_AES_CMAC_SUBKEY_GEN_128(manager, job->encrypt, job->first, job->second);
    memcpy(job->message - 8, job->iv, 8);
}

static void fill(IMB_JOB *to, struct job *job) {
    memset(to, 0, sizeof *to);
    to->src = job->message;
    to->dst = job->message;
    to->cipher_direction = IMB_DIR_ENCRYPT;
    to->user_data = job;
    if (job->kind == 0) {
        to->chain_order = IMB_ORDER_CIPHER_HASH;
        to->hash_alg = IMB_AUTH_NULL;
        to->iv = job->iv;
        to->iv_len_in_bytes = 16;
        to->key_len_in_bytes = 16;
        switch (job->algorithm) {
        case 1:
            to->cipher_mode = IMB_CIPHER_SNOW3G_UEA2_BITLEN;
            to->enc_keys = to->dec_keys = job->snow;
            to->msg_len_to_cipher_in_bits = job->bits;
            break;
        case 2:
            to->enc_keys = to->dec_keys = job->encrypt;
            if (job->bits % 8) {
                to->cipher_mode = IMB_CIPHER_CNTR_BITLEN;
                to->msg_len_to_cipher_in_bits = job->bits;
            } else {
                to->cipher_mode = IMB_CIPHER_CNTR;
                to->msg_len_to_cipher_in_bytes = job->bits / 8;
            }
            break;
        default:
            to->cipher_mode = IMB_CIPHER_ZUC_EEA3;
            to->enc_keys = to->dec_keys = job->key;
            to->msg_len_to_cipher_in_bytes = job->bits / 8;
        }
        return;
    }
    to->chain_order = IMB_ORDER_HASH_CIPHER;
    to->cipher_mode = IMB_CIPHER_NULL;
    to->auth_tag_output = job->tag;
    to->auth_tag_output_len_in_bytes = 4;
    switch (job->algorithm) {
    case 1:
        to->hash_alg = IMB_AUTH_SNOW3G_UIA2_BITLEN;
        to->u.SNOW3G_UIA2._key = job->snow;
        to->u.SNOW3G_UIA2._iv = job->iv;
        to->msg_len_to_hash_in_bits = job->bits;
        break;
    case 2:
        to->src = job->message - 8;
        to->u.CMAC._key_expanded = job->encrypt;
        to->u.CMAC._skey1 = job->first;
        to->u.CMAC._skey2 = job->second;
        if (job->bits % 8) {
            to->hash_alg = IMB_AUTH_AES_CMAC_BITLEN;
            to->msg_len_to_hash_in_bits = 64 + job->bits;
        } else {
            to->hash_alg = IMB_AUTH_AES_CMAC;
            to->msg_len_to_hash_in_bytes = 8 + job->bits / 8;
        }
        break;
    default:
        to->hash_alg = IMB_AUTH_ZUC_EIA3_BITLEN;
        to->u.ZUC_EIA3._key = job->key;
        to->u.ZUC_EIA3._iv = job->iv;
        to->msg_len_to_hash_in_bits = job->bits;
    }
}

static void finished(const IMB_JOB *job) {
    if (job->status != IMB_STATUS_COMPLETED) {
        const struct job *mine = job->user_data;
        fprintf(stderr, "refused: algorithm %d, kind %d, %u bits\n", mine->algorithm, mine->kind, mine->bits);
        exit(1);
    }
}

static void run(IMB_MGR *manager, struct job *jobs, unsigned count) {
    IMB_JOB *done;
    for (unsigned i = 0; i < count; i++) {
        fill(IMB_GET_NEXT_JOB(manager), &jobs[i]);
        done = IMB_SUBMIT_JOB(manager);
        if (!done && imb_get_errno(manager)) {
            fprintf(stderr, "%s\n", imb_get_strerror(imb_get_errno(manager)));
            exit(1);
        }
        for (; done; done = IMB_GET_COMPLETED_JOB(manager)) finished(done);
    }
    while ((done = IMB_FLUSH_JOB(manager))) finished(done);
}

static void single(IMB_MGR *manager, struct job *job) {
    unsigned bytes = job->bits / 8;
    switch (10 * job->kind + job->algorithm) {
    case 1: IMB_SNOW3G_F8_1_BUFFER(manager, job->snow, job->iv, job->message, job->message, bytes); break;
    case 3: IMB_ZUC_EEA3_1_BUFFER(manager, job->key, job->iv, job->message, job->message, bytes); break;
    case 11: IMB_SNOW3G_F9_1_BUFFER(manager, job->snow, job->iv, job->message, job->bits, job->tag); break;
    case 13: IMB_ZUC_EIA3_1_BUFFER(manager, job->key, job->iv, job->message, job->bits, (uint32_t *)job->tag); break;
    default: run(manager, job, 1);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000ull * time.tv_sec + time.tv_nsec;
}

static void get(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(1);
}

static uint32_t number(void) {
    uint8_t b[4];
    get(b, 4);
    return b[0] | b[1] << 8 | b[2] << 16 | (uint32_t)b[3] << 24;
}

int main(int arguments, char **argument) {
    if (arguments < 3) return 2;
    IMB_MGR *manager = alloc_mb_mgr(0);
    if (!manager) return 2;
    int one = !strcmp(argument[1], "single");
    uint64_t needs = !strcmp(argument[1], "avx512") ? IMB_FEATURE_AVX512_SKX : !strcmp(argument[1], "avx2") ? IMB_FEATURE_AVX2 : 0;
    if (needs && !(manager->features & needs)) return 3; // the processor lacks the instructions, and starting would end the program
    if (!strcmp(argument[1], "sse")) init_mb_mgr_sse(manager);
    else if (!strcmp(argument[1], "avx2")) init_mb_mgr_avx2(manager);
    else if (!strcmp(argument[1], "avx512")) init_mb_mgr_avx512(manager);
    else init_mb_mgr_auto(manager, NULL);
    if (imb_get_errno(manager)) return 3;

    if (!strcmp(argument[2], "check")) {
        uint32_t count = number();
        struct job *jobs = room(count * sizeof *jobs);
        for (uint32_t i = 0; i < count; i++) {
            struct job *job = &jobs[i];
            get(&job->algorithm, 1);
            get(&job->kind, 1);
            job->bits = number();
            get(job->key, 16);
            get(job->iv, 16);
            size_t bytes = (job->bits + 7) / 8;
            job->message = (uint8_t *)room(bytes + 128) + 64;
            get(job->message, bytes);
            expand(manager, job);
        }
        if (one) for (uint32_t i = 0; i < count; i++) single(manager, &jobs[i]);
        else run(manager, jobs, count);
        for (uint32_t i = 0; i < count; i++) {
            struct job *job = &jobs[i];
            if (job->kind) fwrite(job->tag, 1, 4, stdout);
            else fwrite(job->message, 1, (job->bits + 7) / 8, stdout);
        }
        return fflush(stdout) != 0;
    }
    if (arguments < 8) return 2;
    unsigned size = atoi(argument[5]), count = atoi(argument[6]);
    uint64_t limit = 1000000ull * atoi(argument[7]);
    struct job *jobs = room(count * sizeof *jobs);
    for (unsigned i = 0; i < count; i++) {
        jobs[i].algorithm = atoi(argument[3]);
        jobs[i].kind = atoi(argument[4]);
        jobs[i].bits = 8 * size;
        memset(jobs[i].key, i + 1, 16);
        jobs[i].iv[3] = i;
        jobs[i].message = (uint8_t *)room(size + 128) + 64;
        expand(manager, &jobs[i]);
    }
    uint64_t begin = now(), best = UINT64_MAX;
    unsigned rounds = 1 + 100000 / (size * count);
    do {
        uint64_t start = now();
        for (unsigned round = 0; round < rounds; round++) {
            if (one) for (unsigned i = 0; i < count; i++) single(manager, &jobs[i]);
            else run(manager, jobs, count);
        }
        uint64_t took = now() - start;
        if (took < best) best = took;
    } while (now() - begin < limit);
    printf("%.4f\n", (double)best / ((double)rounds * size * count));
    return 0;
}
