// SPDX-License-Identifier: Apache-2.0
//
// One direction of an impaired link, in one of two places.
//
// Where it receives (XDP, generic mode), after the sender's queue and its shaper, so a frame that is lost has
// had its time on the link, and before everything else that receives: packet sockets, with which Open
// vSwitch's user-space datapath reads, and the network stack. The kernel passes by XDP in generic mode what
// eBPF has redirected, so where the sender is a device of eBPF, it is where that sends (traffic control,
// egress): such devices have no shaper, but for an O-NIC's fibre, whose frames are lost before it.
//
// A frame to be delayed goes out through the delay line (a TAP interface), whose process hands it back in
// time. It takes along when it came. On the way back it is known by the head that it has in front of
// Ethernet's (XDP), or by its mark (traffic control).

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "survival.h"

#define DELAYED 0x88b5	  /* an EtherType for local experiments, IEEE 802 */
#define MARK 0x52494e47u /* of a frame that comes back */

struct settings {
	__u64 seed;
	__u64 arrive;	/* share, times 2^31, of frames that are not lost */
	__u64 since_ns; /* CLOCK_MONOTONIC; from then on */
	__u64 down_ns;	/* nothing passes; 0: it does not flap */
	__u64 up_ns;	/* and then everything */
	__u32 line;	/* interface of the delay line, 0: none */
	__u32 home;	/* this interface */
	struct survival bits;
};

struct counts {
	__u64 frames;
	__u64 bytes;
	__u64 lost;
	__u64 damaged;
	__u64 down; /* came while it was down */
};

/* In front of a delayed frame, where Ethernet's header is. */
struct head {
	__u64 came_ns;
	__u32 unused;
	__be16 type;
} __attribute__((packed));

/* Behind a delayed frame. */
struct tail {
	__u64 came_ns;
	__u64 mark;
};

HASH(settings, 1, __u32, struct settings); /* its one element is replaced as a whole */

ARRAY(counts, 1, struct counts);

enum fate { PASSES, DIES, WAITS };

static __always_inline enum fate fate_of(const struct settings *set, __u32 bytes, __u64 now)
{
	__u32 zero = 0;
	struct counts *count = bpf_map_lookup_elem(&counts, &zero);
	if (!count)
		return PASSES;
	__u64 number = count->frames;
	__sync_fetch_and_add(&count->frames, 1);
	__sync_fetch_and_add(&count->bytes, bytes);
	if (set->down_ns && (now - set->since_ns) % (set->down_ns + set->up_ns) < set->down_ns) {
		__sync_fetch_and_add(&count->down, 1);
		return DIES;
	}
	__u64 draw = drawn(set->seed, number);
	if ((draw & (ALL - 1)) >= set->arrive) {
		__sync_fetch_and_add(&count->lost, 1);
		return DIES;
	}
	/* With its check sequence, which is not there. */
	if (!survives(&set->bits, bytes + 4, draw >> 33)) {
		__sync_fetch_and_add(&count->damaged, 1);
		return DIES;
	}
	return set->line ? WAITS : PASSES;
}

SEC("xdp")
int receive(struct xdp_md *packet)
{
	__u32 zero = 0;
	struct head *head = (void *)(long)packet->data;
	if ((void *)(head + 1) <= (void *)(long)packet->data_end && head->type == bpf_htons(DELAYED))
		return bpf_xdp_adjust_head(packet, sizeof(*head)) ? XDP_DROP : XDP_PASS;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return XDP_PASS;
	__u64 now = bpf_ktime_get_ns();
	__u32 line = set->line;
	enum fate fate = fate_of(set, packet->data_end - packet->data, now);
	if (fate != WAITS)
		return fate == DIES ? XDP_DROP : XDP_PASS;
	if (bpf_xdp_adjust_head(packet, -(int)sizeof(*head)))
		return XDP_DROP;
	head = (void *)(long)packet->data;
	if ((void *)(head + 1) > (void *)(long)packet->data_end)
		return XDP_DROP;
	head->came_ns = now;
	head->unused = 0;
	head->type = bpf_htons(DELAYED);
	return bpf_redirect(line, 0);
}

SEC("tc")
int send(struct __sk_buff *packet)
{
	__u32 zero = 0;
	if (packet->mark == MARK) {
		packet->mark = 0;
		return TC_ACT_OK;
	}
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return TC_ACT_OK;
	struct tail tail = {.came_ns = bpf_ktime_get_ns(), .mark = MARK};
	__u32 line = set->line, bytes = packet->len;
	enum fate fate = fate_of(set, bytes, tail.came_ns);
	/* Stolen, not shot: who sent it must not hear of it. */
	if (fate != WAITS)
		return fate == DIES ? TC_ACT_STOLEN : TC_ACT_OK;
	if (bpf_skb_change_tail(packet, bytes + sizeof(tail), 0) ||
	    bpf_skb_store_bytes(packet, bytes, &tail, sizeof(tail), 0))
		return TC_ACT_STOLEN;
	return bpf_redirect(line, 0);
}

/* What comes out of the delay line of a receiver. */
SEC("tc")
int hand_back(struct __sk_buff *packet)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	return set ? bpf_redirect(set->home, BPF_F_INGRESS) : TC_ACT_SHOT;
}

/* And of a sender. */
SEC("tc")
int hand_on(struct __sk_buff *packet)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	packet->mark = MARK;
	return set ? bpf_redirect(set->home, 0) : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Apache-2.0";
