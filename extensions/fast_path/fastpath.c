// SPDX-License-Identifier: Apache-2.0
//
// Carries in the kernel what Open vSwitch's flow tables say, beside Open vSwitch's userspace datapath.
//
// The userspace datapath reads its ports through packet sockets, which the kernel serves before the ingress
// hook of traffic control. Two programs see each packet, one after the other on the processor that receives it:
//
//   `claim` is the filter of Open vSwitch's own receiving socket. It hides the frame from Open vSwitch, and notes
//   for this processor that it did.
//   `carry` is at the ingress hook of the same port. It looks a frame up that was claimed, and carries it or
//   leaves it to Open vSwitch; with one that was not claimed it does nothing.
//
// Where the filter is missing, because Open vSwitch has just opened another socket or has ended, nothing is
// carried here and nothing goes twice.
//
// What is left to Open vSwitch goes through an extra pair of interfaces. Hosts may send frames of many segments
// and leave checksums to be computed, which the userspace datapath cannot read; the pair's driver can do neither,
// so the kernel cuts frames up and completes them on the way. `smooth`, at its far end, puts a frame where it came
// in, marked, and `claim` lets it through.
//
// User space owns every table (table.py says how it is made), and makes a change visible by replacing one
// element.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define MAX_PORTS 8192
#define MAX_SWITCHES 1024
#define MAX_RULES 65536
#define MAX_GROUPS 1024
#define MAX_COUNTERS 131072
#define SUBTABLES 24
#define OUTPUTS 8
#define BUCKETS 16
#define SLOTS 64
#define WORDS 8

#define ETH_P_RARP 0x8035
#define LEAST_ETHERTYPE 0x600 /* below it is a length */
#define FRAGMENT 0x3fff	      /* more fragments follow, or this is not the first */
#define MOST_PADDING 255      /* of a frame, beyond which Open vSwitch reads no IP header */

/* What rules can match: packet fields as Open vSwitch has them, in network byte order but for the port. */
union fields {
	struct {
		__u32 in_port;
		__u8 eth_dst[6];
		__u8 eth_src[6];
		__u16 eth_type;
		__u8 ip_proto; /* or the operation of ARP */
		__u8 pad;
		__u32 src; /* IPv4, or ARP's sender */
		__u32 dst; /* IPv4, or ARP's target */
		__u16 tp_src;
		__u16 tp_dst;
	};
	__u32 word[WORDS];
};

struct key {
	__u32 subtable;
	__u32 word[WORDS];
};

/* Rules of one priority that look at the same bits. */
struct subtable {
	__u32 number; /* of all switches' subtables */
	__u32 mask[WORDS];
};

/* A switch's flow table: subtables by falling priority. */
struct table {
	__u32 count;
	struct subtable subtables[SUBTABLES];
};

/* Interfaces that a frame leaves by; none means drop. */
struct outputs {
	__u32 counter;
	__u32 count;
	__u32 interface[OUTPUTS];
};

enum kind {
	LEAVE = 0, /* to Open vSwitch */
	OUTPUT = 1,
	GROUP = 2,
};

struct rule {
	__u32 kind;
	__u32 group; /* key of groups */
	struct outputs outputs;
};

/* A group that selects one of its buckets by a hash. */
struct group {
	__u32 counter;
	__u32 mask; /* of the hash */
	__u8 bucket[SLOTS];
	struct outputs buckets[BUCKETS];
};

struct count {
	__u64 packets;
	__u64 bytes;
};

struct port {
	__u32 switch_;
	__u32 number;
	/* What the kernel's counters of the interface lack: segments of a frame are one to it. */
	struct count rx;
	struct count tx;
};

/* A frame that was hidden from Open vSwitch, to be carried or left to it; its interface is 0 where there is none. */
struct claimed {
	__u32 ifindex;
	__u32 length;
};

HASH(ports, MAX_PORTS, __u32, struct port); /* by interface */
HASH(tables, MAX_SWITCHES, __u32, struct table);
HASH(rules, MAX_RULES, struct key, struct rule);
HASH(groups, MAX_GROUPS, __u32, struct group);
HASH(counters, MAX_COUNTERS, __u32, struct count);
/* One element: the near end of the extra pair. */
ARRAY(smoother, 1, __u32);
MAP(claims, BPF_MAP_TYPE_PERCPU_ARRAY, 0, 1, __u32, struct claimed);

#define SMOOTH 0x524c0001 /* mark of what has been through the extra pair */
#define TO_OVS 0xffffffff
#define HIDE 0

struct ipv4 {
	__u8 version_length;
	__u8 tos;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 proto;
	__u16 checksum;
	__be32 src;
	__be32 dst;
};

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
} __attribute__((packed));

/* The beginning of a frame, such that its IP header is aligned. What lies behind the frame's end is 0. */
struct head {
	__u8 before[2];
	struct ethhdr ethernet;
	union {
		struct {
			struct ipv4 ip;
			__u8 transport[20]; /* where the IP header has no options */
		};
		struct arp arp;
	};
};

#define HEAD (sizeof(struct head) - 2)

/* Length of a transport header without options, 0 where its fields are not looked at. */
static __always_inline __u32 transport_length(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return 20;
	case IPPROTO_SCTP:
		return 12;
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
		return 8;
	default:
		return 0;
	}
}

/* False where Open vSwitch might read the packet otherwise: it then has it. */
static __always_inline int
parse_ipv4(struct __sk_buff *packet, struct head *head, union fields *fields, __u32 *header)
{
	struct ipv4 *ip = &head->ip;
	__u32 ip_header = (ip->version_length & 0x0f) * 4, there = packet->len - ETH_HLEN;
	__u32 length = bpf_ntohs(ip->length);
	/* A frame not yet cut into segments may be longer than its header can say, which then says 0. */
	if (packet->gso_segs > 1)
		length = there;
	if (packet->len < ETH_HLEN + sizeof(*ip) || ip->version_length >> 4 != 4 || ip_header < 20 ||
	    (ip->fragment & bpf_htons(FRAGMENT)))
		return 0;
	if (length < ip_header || length > there || there - length > MOST_PADDING)
		return 0;
	fields->ip_proto = ip->proto;
	fields->src = ip->src;
	fields->dst = ip->dst;
	*header = ETH_HLEN + ip_header;
	__u32 transport = transport_length(ip->proto);
	if (!transport)
		return 1;
	if (length < ip_header + transport)
		return 0;
	/* Behind options. */
	if (ip_header > 20 && bpf_skb_load_bytes(packet, ETH_HLEN + ip_header, head->transport, 8))
		return 0;
	if (ip->proto == IPPROTO_ICMP) {
		/* Open vSwitch keeps type and code where other protocols have their ports. */
		fields->tp_src = bpf_htons(head->transport[0]);
		fields->tp_dst = bpf_htons(head->transport[1]);
		return 1;
	}
	__builtin_memcpy(&fields->tp_src, head->transport, 2);
	__builtin_memcpy(&fields->tp_dst, head->transport + 2, 2);
	if (ip->proto == IPPROTO_TCP) {
		if (ip_header > 20 &&
		    bpf_skb_load_bytes(packet, ETH_HLEN + ip_header + 12, head->transport + 12, 1))
			return 0;
		*header += (head->transport[12] >> 4) * 4;
	}
	return 1;
}

static __always_inline int parse_arp(struct __sk_buff *packet, const struct arp *arp, union fields *fields)
{
	if (packet->len < ETH_HLEN + sizeof(*arp) || arp->hardware != bpf_htons(1) ||
	    arp->protocol != bpf_htons(ETH_P_IP) || arp->hardware_length != 6 || arp->protocol_length != 4 ||
	    bpf_ntohs(arp->operation) > 255)
		return 0;
	fields->ip_proto = bpf_ntohs(arp->operation);
	__builtin_memcpy(&fields->src, arp->sender, 4);
	__builtin_memcpy(&fields->dst, arp->target, 4);
	return 1;
}

static __always_inline int parse(struct __sk_buff *packet, union fields *fields, __u32 *header)
{
	struct head head = {};
	__u32 length = packet->len;
	if (packet->vlan_present || length < ETH_HLEN)
		return 0;
	if (length > HEAD)
		length = HEAD;
	/* Keeps the length in the register whose bounds the verifier knows. */
	asm volatile("" : "+r"(length));
	if (bpf_skb_load_bytes(packet, 0, &head.ethernet, length))
		return 0;
	__builtin_memcpy(fields->eth_dst, head.ethernet.h_dest, 6);
	__builtin_memcpy(fields->eth_src, head.ethernet.h_source, 6);
	fields->eth_type = head.ethernet.h_proto;
	*header = ETH_HLEN;
	switch (bpf_ntohs(head.ethernet.h_proto)) {
	case ETH_P_IP:
		return parse_ipv4(packet, &head, fields, header);
	case ETH_P_ARP:
		return parse_arp(packet, &head.arp, fields);
	case ETH_P_IPV6:
	case ETH_P_8021Q:
	case ETH_P_8021AD:
	case ETH_P_RARP:
	case ETH_P_MPLS_UC:
	case ETH_P_MPLS_MC:
		return 0;
	default:
		return bpf_ntohs(head.ethernet.h_proto) >= LEAST_ETHERTYPE;
	}
}

/* Open vSwitch's hash of a flow that is the same in both directions (lib/hash.h, MurmurHash3; lib/flow.c). */

static __always_inline __u32 rotate(__u32 x, int by)
{
	return x << by | x >> (32 - by);
}

static __always_inline __u32 hash_add(__u32 hash, __u32 data)
{
	hash ^= rotate(data * 0xcc9e2d51, 15) * 0x1b873593;
	return rotate(hash, 13) * 5 + 0xe6546b64;
}

static __always_inline __u32 hash_of(const union fields *fields)
{
	__u32 hash = hash_add(0, fields->src ^ fields->dst);
	hash = hash_add(hash, fields->ip_proto);
	if (fields->ip_proto == IPPROTO_TCP || fields->ip_proto == IPPROTO_SCTP)
		hash = hash_add(hash, fields->tp_src ^ fields->tp_dst);
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	hash ^= hash >> 16;
	return hash ? hash : 1;
}

static __always_inline struct rule *find(const struct table *table, const union fields *fields)
{
	for (__u32 i = 0; i < SUBTABLES; i++) {
		if (i >= table->count)
			break;
		const struct subtable *subtable = &table->subtables[i];
		struct key key = {.subtable = subtable->number};
		for (int w = 0; w < WORDS; w++)
			key.word[w] = fields->word[w] & subtable->mask[w];
		struct rule *rule = bpf_map_lookup_elem(&rules, &key);
		if (rule)
			return rule;
	}
	return 0;
}

SEC("socket")
int claim(struct __sk_buff *packet)
{
	/* What leaves by the port comes here, too; Open vSwitch's own filter hides it. */
	if (packet->pkt_type == PACKET_OUTGOING)
		return HIDE;
	__u32 zero = 0;
	struct claimed *claimed = bpf_map_lookup_elem(&claims, &zero);
	if (!claimed)
		return TO_OVS;
	int smoothed = packet->mark == SMOOTH;
	claimed->ifindex = smoothed ? 0 : packet->ifindex;
	claimed->length = packet->len;
	return smoothed ? TO_OVS : HIDE;
}

static __always_inline void add(struct count *count, __u64 packets, __u64 bytes)
{
	__sync_fetch_and_add(&count->packets, packets);
	__sync_fetch_and_add(&count->bytes, bytes);
}

static __always_inline void count(__u32 number, __u64 packets, __u64 bytes)
{
	struct count *count = number ? bpf_map_lookup_elem(&counters, &number) : 0;
	if (count)
		add(count, packets, bytes);
}

/* Adds what the kernel's counters lack of a frame of several segments, at one end of its way through the switch. */
static __always_inline void count_extra(struct count *extra, __u64 packets, __u64 header)
{
	if (packets > 1)
		add(extra, packets - 1, (packets - 1) * header);
}

static __always_inline void count_sent(__u32 ifindex, __u64 packets, __u64 header)
{
	struct port *port = packets > 1 ? bpf_map_lookup_elem(&ports, &ifindex) : 0;
	if (port)
		count_extra(&port->tx, packets, header);
}

static __always_inline int leave(struct __sk_buff *packet, struct port *port, __u64 packets, __u32 header)
{
	__u32 zero = 0, *near = bpf_map_lookup_elem(&smoother, &zero);
	if (!near)
		return TC_ACT_SHOT;
	if (port)
		count_extra(&port->rx, packets, header);
	packet->mark = packet->ifindex;
	return bpf_redirect(*near, 0);
}

SEC("tc")
int carry(struct __sk_buff *packet)
{
	__u32 zero = 0, ifindex = packet->ifindex, header = 0;
	struct claimed *claimed = bpf_map_lookup_elem(&claims, &zero);
	if (!claimed || claimed->ifindex != ifindex || claimed->length != packet->len)
		return TC_ACT_OK;
	claimed->ifindex = 0;
	__u64 packets = packet->gso_segs > 1 ? packet->gso_segs : 1;
	struct port *port = bpf_map_lookup_elem(&ports, &ifindex);
	union fields fields = {.in_port = port ? port->number : 0};
	if (!parse(packet, &fields, &header) || !port)
		return leave(packet, port, packets, header);
	__u32 number = port->switch_;
	struct table *table = bpf_map_lookup_elem(&tables, &number);
	struct rule *rule = table ? find(table, &fields) : 0;
	if (!rule || rule->kind == LEAVE)
		return leave(packet, port, packets, header);
	struct outputs *outputs = &rule->outputs;
	__u64 bytes = packet->len + (packets - 1) * header;
	if (rule->kind == GROUP) {
		__u32 which = rule->group;
		struct group *group = bpf_map_lookup_elem(&groups, &which);
		if (!group || fields.eth_type != bpf_htons(ETH_P_IP))
			return leave(packet, port, packets, header);
		__u32 bucket = group->bucket[hash_of(&fields) & group->mask & (SLOTS - 1)];
		if (bucket >= BUCKETS)
			return leave(packet, port, packets, header);
		outputs = &group->buckets[bucket];
		count(group->counter, packets, bytes);
		count(outputs->counter, packets, bytes);
	}
	count(rule->outputs.counter, packets, bytes);
	count_extra(&port->rx, packets, header);
	/* The sender's socket, which is this machine's, must not be held back by this port's queue, so the queue gets
	 * a clone. A frame without payload holds its sender back by next to nothing. */
	if (outputs->count == 1 && (!packet->sk || packet->len == header) && outputs->interface[0] != ifindex) {
		__u32 out = outputs->interface[0];
		count_sent(out, packets, header);
		return bpf_redirect(out, 0);
	}
	for (__u32 i = 0; i < OUTPUTS; i++) {
		if (i >= outputs->count)
			break;
		__u32 out = outputs->interface[i];
		/* OpenFlow sends nothing back by the port that it came in by. */
		if (out != ifindex) {
			bpf_clone_redirect(packet, out, 0);
			count_sent(out, packets, header);
		}
	}
	return TC_ACT_SHOT;
}

/* The far end of the extra pair. */
SEC("tc")
int smooth(struct __sk_buff *packet)
{
	__u32 ifindex = packet->mark;
	packet->mark = SMOOTH;
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

char _license[] SEC("license") = "Apache-2.0";
