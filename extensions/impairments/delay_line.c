// SPDX-License-Identifier: Apache-2.0
//
// Holds the frames of one direction of a link: delay_line TAP head|tail DELAY_NS JITTER_NS SEED BYTES
//
// TAP is the descriptor of a TAP interface; frames have the head or the tail of impaired.c, with the time at
// which they came, and leave without the tail. They leave in their order. BYTES is room for those under way; what finds none is lost. It ends with
// SIGTERM, or when the interface does.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536 /* bytes of what is read at once */
#define OWN 10	   /* bytes of the interface's own head */
#define TAIL 16	   /* bytes of ours */
#define TURN 8	   /* frames read before those that are due are looked at again */

struct item {
	uint64_t due_ns;
	uint32_t bytes; /* 0: the next is at the beginning of the room */
	uint32_t unused;
};

static char *room;
static size_t size, first, next, count;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static size_t aligned(size_t bytes)
{
	return (bytes + 15) & ~(size_t)15;
}

/* Where the next frame can go; 0 if there is no room. */
static struct item *place(void)
{
	size_t needed = sizeof(struct item) + MOST;
	if (!count)
		first = next = 0;
	if (next >= first) {
		if (size - next >= needed + sizeof(struct item))
			return (struct item *)(room + next);
		if (first <= needed)
			return 0;
		((struct item *)(room + next))->bytes = 0;
		next = 0;
	}
	return first - next > needed ? (struct item *)(room + next) : 0;
}

/* When a frame came; 0 for one that the interface sent by itself. */
static int stamped(const char *frame, ssize_t bytes, int tail, uint64_t *came)
{
	uint64_t mark = 0;
	if (bytes < OWN + 14 + TAIL)
		return 0;
	memcpy(came, tail ? frame + bytes - TAIL : frame + OWN, sizeof(*came));
	if (!tail)
		return frame[OWN + 12] == (char)0x88 && frame[OWN + 13] == (char)0xb5;
	memcpy(&mark, frame + bytes - 8, sizeof(mark));
	return mark == 0x52494e47u;
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: delay_line TAP head|tail DELAY_NS JITTER_NS SEED BYTES\n");
		return 2;
	}
	int tap = atoi(argv[1]);
	int tail = !strcmp(argv[2], "tail");
	uint64_t delay = strtoull(argv[3], 0, 10), jitter = strtoull(argv[4], 0, 10), last = 0;
	uint64_t draw = strtoull(argv[5], 0, 10) | 1, lost = 0;
	size = strtoull(argv[6], 0, 10) + 4 * MOST;
	room = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED || fcntl(tap, F_SETFL, O_NONBLOCK)) {
		perror("delay_line");
		return 1;
	}
	prctl(PR_SET_TIMERSLACK, 1);
	/* Where it may not, it is only later. */
	struct sched_param priority = {.sched_priority = 1};
	(void)sched_setscheduler(0, SCHED_RR, &priority);
	static char spare[MOST];
	for (;;) {
		int drained = 0;
		for (int turn = 0; turn < TURN && !drained; turn++) {
			struct item *item = place();
			char *frame = item ? (char *)(item + 1) : spare;
			ssize_t got = read(tap, frame, MOST);
			if (got < 0 && errno != EAGAIN && errno != EINTR)
				return 0;
			drained = got < 0;
			uint64_t came;
			if (!stamped(frame, got, tail, &came))
				continue;
			if (tail)
				got -= TAIL;
			if (!item) {
				if (!lost++)
					fprintf(stderr, "delay_line: no room for more frames; some are lost\n");
				continue;
			}
			item->due_ns = came + delay;
			if (jitter) {
				draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
				item->due_ns += (draw >> 11) % (2 * jitter + 1) - jitter;
			}
			if (item->due_ns < last)
				item->due_ns = last;
			last = item->due_ns;
			item->bytes = got;
			next += aligned(sizeof(*item) + got);
			count++;
		}
		int64_t left = -1;
		while (count) {
			struct item *item = (struct item *)(room + first);
			if (!item->bytes) {
				first = 0;
				continue;
			}
			left = item->due_ns - now_ns();
			if (left > 0)
				break;
			left = -1;
			if (write(tap, item + 1, item->bytes) < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
				return 0;
			first += aligned(sizeof(*item) + item->bytes);
			count--;
		}
		if (!drained)
			continue;
		struct pollfd waits = {.fd = tap, .events = POLLIN};
		struct timespec rest = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
		if (ppoll(&waits, 1, left < 0 ? 0 : &rest, 0) < 0 && errno != EINTR)
			return 1;
	}
}
