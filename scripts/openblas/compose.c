/*
 * The dense compose job of `spliced` done with OpenBLAS, for comparison:
 * state = T*state + S for 32 heads of 128x128, T in fp16, S and state in fp32,
 * one thread. Per head: widen T (F16C), copy S, sgemm with beta = 1.
 *
 * Each line on stdin runs one round and prints the CPU seconds of the thread for
 * it. The last number of state is printed at the end, so that nothing is skipped.
 *
 *   cc -O3 -mf16c -mavx2 -o openblas-compose compose.c -ldl
 *
 * Exits 3 when libopenblas.so.0 is missing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 32, D = 128, HEAD = D * D };
enum { ROW_MAJOR = 101, NO_TRANS = 111 };

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);

static uint16_t *transitions; /* [HEADS, D, D] fp16 */
static float *ends;           /* [HEADS, D, D] S of the segment */
static float *states[2];      /* [HEADS, D, D] before and after, swapped each round */

static void *block(size_t n) {
	void *p = NULL;
	if (posix_memalign(&p, 64, n) != 0) {
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	return p;
}

/* Numbers small enough that the state stays bounded over any number of rounds. */
static void fill(void) {
	uint32_t x = 1;
	for (int i = 0; i < HEADS * HEAD; i++) {
		x = x * 1664525u + 1013904223u;
		float v = (float)(int32_t)x * 0x1p-31f;
		transitions[i] = _cvtss_sh(v * 0.08f, _MM_FROUND_TO_NEAREST_INT);
		ends[i] = v;
		states[0][i] = -v;
	}
}

static void widen(float *dst, const uint16_t *src) {
	for (int i = 0; i < HEAD; i += 8)
		_mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
}

static void compose(sgemm_fn sgemm, float *wide) {
	for (int h = 0; h < HEADS; h++) {
		float *out = states[1] + h * HEAD;
		widen(wide, transitions + h * HEAD);
		memcpy(out, ends + h * HEAD, HEAD * sizeof(float));
		sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, D, D, D, 1.0f, wide, D, states[0] + h * HEAD, D, 1.0f, out, D);
	}
	float *t = states[0];
	states[0] = states[1];
	states[1] = t;
}

static double thread_seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void) {
	setenv("OPENBLAS_NUM_THREADS", "1", 1);
	void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
	sgemm_fn sgemm = lib ? (sgemm_fn)dlsym(lib, "cblas_sgemm") : NULL;
	if (!sgemm) {
		fprintf(stderr, "libopenblas.so.0 is not here: %s\n", dlerror());
		return 3;
	}
	transitions = block(HEADS * HEAD * sizeof *transitions);
	ends = block(HEADS * HEAD * sizeof *ends);
	states[0] = block(HEADS * HEAD * sizeof **states);
	states[1] = block(HEADS * HEAD * sizeof **states);
	float *wide = block(HEAD * sizeof *wide);
	fill();
	compose(sgemm, wide); /* touches all memory, lets the library set itself up */

	for (int c; (c = getchar()) != EOF;) {
		if (c != '\n')
			continue;
		double t = thread_seconds();
		compose(sgemm, wide);
		printf("%.9f\n", thread_seconds() - t);
		fflush(stdout);
	}
	fprintf(stderr, "state %g\n", states[0][HEADS * HEAD - 1]);
	return 0;
}
