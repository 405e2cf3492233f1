// SPDX-License-Identifier: Apache-2.0
//
// Sends what comes in at one interface out by another, and does nothing else: what the kernel takes for it is
// the least that a switch can cost.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

HASH(ways, 64, __u32, __u32); /* by interface */

SEC("tc")
int redirect(struct __sk_buff *packet)
{
	__u32 ifindex = packet->ifindex;
	__u32 *way = bpf_map_lookup_elem(&ways, &ifindex);
	return way ? bpf_redirect(*way, 0) : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Apache-2.0";
