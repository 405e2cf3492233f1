// SPDX-License-Identifier: Apache-2.0
//
// The packet side of an emulated O-NIC: traffic-control ingress, direct action, one program per kind of port.
//
// `host` is the GPU's network interface, `p0`, `p1`, … are the fibres to optical switches, `ctl` is the control
// network. Light goes one way, so only payload travels as light; everything else (TCP's handshakes and
// acknowledgements, and whatever is not TCP) takes the control network, as an O-NIC would send its transport's
// acknowledgements there.
//
// The transmitter of a fibre port is one tunable laser, whose colour the WSS at the other end looks up, or an
// array of fixed ones, used at once: then each packet leaves with its colour on it, as an 802.1Q tag, and with
// the priority that names the array's transmitter of that colour to the port's queue.
//
// Where light stands, nobody asks for it: each peer has a set of lightpaths, which changes while payload is on
// its way. So payload waits before its way is chosen: it goes through `qo`, which has queues for each peer,
// comes in again at `qi`, and is dealt out there over the peer's lightpaths in turn. While these are dark it
// goes round through its queue, so that nothing is lost. Words (payload marked with DSCP CS6) take the control
// network.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define FIBRES 32
#define QUEUES 0x10000 /* major number of the classes of a port's or a peer's queues */
#define LIGHTPATHS 64  /* most of one peer */
#define FRAGMENT 0x1fff
#define WORDS 0xc0 /* type of service of what is not for the light */
enum port { HOST = FIBRES, CONTROL, QUEUE, PORTS }; /* fibres come before these */

/* A map whose entries are made as they are needed. */
#define TABLE(name, key, value) HASH(name, 4096, key, value)

struct counters {
	__u64 control_tx_packets; /* of the GPU, over the control network */
	__u64 control_tx_bytes;
	__u64 control_rx_packets;
	__u64 control_rx_bytes;
	__u64 unrouted; /* payload for a peer that no light leads to */
};

ARRAY(counters, 1, struct counters);

struct fibre {
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 misdirected; /* light meant for another O-NIC */
};

ARRAY(fibres, FIBRES, struct fibre);

/* Interface index of each port, 0 while it is not there. */
ARRAY(ports, PORTS, __u32);

MAP(fibre_of_ifindex, BPF_MAP_TYPE_HASH, 0, FIBRES, __u32, __u32);

struct identity {
	__u32 layout;
	__u8 mac[ETH_ALEN]; /* the GPU's */
	__u8 reserved[2];
};

ARRAY(identity, 1, struct identity);

struct route {
	__u32 fibre; /* port */
	__u32 tag; /* of an array: channel + 1; 0 of a tunable laser */
};

/* What leads to a peer, by its IPv4 address in network order. */
TABLE(route_of_peer, __u32, struct route);

/* Entries of standing light, by the peer's IPv4 address in network order. */

struct path {
	__u16 fibre;
	__u16 tag; /* channel + 1; 0 where the switch passes every colour alike */
};

/* Replaced as a whole, so that a packet never sees half of a new division. A peer without one gets no light. */
struct light {
	__u32 lit; /* 0: dark for a while */
	__u32 count; /* of lightpaths; 0: dark, too */
	__u32 turn; /* only a hint whose turn it is: a path taken twice does no harm */
	struct path paths[LIGHTPATHS];
};

TABLE(lights, __u32, struct light);

struct peer {
	struct bpf_spin_lock lock; /* of its tracks */
	__u32 first; /* class of its queue for one lightpath; those for two and more follow */
	__u64 fresh; /* bytes of payload that have left as light for the first time */
	__u64 payload; /* and all that have */
	__u64 words; /* bytes of payload that took the control network */
	__u64 held; /* packets sent round in the dark */
};

/* Every other O-NIC, written by the testbed. */
TABLE(peers, __u32, struct peer);

struct lightpath {
	__u32 peer;
	__u16 fibre; /* port of this O-NIC */
	__u16 tag;
};

struct carried {
	__u64 packets;
	__u64 bytes;
	__u64 payload;
};

TABLE(sent_on, struct lightpath, struct carried);

TABLE(received_on, struct lightpath, struct carried);

struct connection {
	__u32 peer;
	__u32 ports; /* of TCP, ours first */
};

struct track {
	__u32 left; /* sequence number that leaves next */
};

MAP(tracks, BPF_MAP_TYPE_LRU_HASH, 0, 1024, struct connection, struct track);

#define COUNT(field, n) __sync_fetch_and_add(&(field), (n))

static __always_inline struct counters *own_counters(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&counters, &zero);
}

static __always_inline int leave_by(__u32 port)
{
	__u32 *ifindex = bpf_map_lookup_elem(&ports, &port);
	if (!ifindex || !*ifindex)
		return TC_ACT_SHOT;
	return bpf_redirect(*ifindex, 0);
}

static __always_inline int is_mine(struct __sk_buff *packet)
{
	__u32 zero = 0;
	__u8 mac[ETH_ALEN];
	struct identity *me = bpf_map_lookup_elem(&identity, &zero);
	if (!me || bpf_skb_load_bytes(packet, 0, mac, ETH_ALEN))
		return 0;
	for (int i = 0; i < ETH_ALEN; i++)
		if (mac[i] != me->mac[i])
			return 0;
	return 1;
}

struct segment {
	__u32 source;
	__u32 destination;
	__u32 ports; /* TCP's, the source's first */
	__u32 seq;
	__u32 bytes; /* of payload */
	__u8 tos;
	__u8 syn;
};

/* Whether a packet is a segment of TCP. Only one with payload travels as light. */
static __always_inline int is_segment(struct __sk_buff *packet, struct segment *found)
{
	struct iphdr ip;
	struct {
		__u32 ports, seq, ack;
		__u8 offset, flags;
	} tcp;
	if (packet->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(packet, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.protocol != IPPROTO_TCP || (ip.frag_off & bpf_htons(FRAGMENT)))
		return 0;
	__u32 start = ETH_HLEN + ip.ihl * 4;
	if (bpf_skb_load_bytes(packet, start, &tcp, 14))
		return 0;
	__u32 headers = start + (tcp.offset >> 4) * 4;
	found->source = ip.saddr;
	found->destination = ip.daddr;
	found->ports = tcp.ports;
	found->seq = bpf_ntohl(tcp.seq);
	/* The frame's length, not the header's: a segment not yet cut has more than a header can say. */
	found->bytes = packet->len > headers ? packet->len - headers : 0;
	found->tos = ip.tos;
	found->syn = tcp.flags & 0x02;
	return 1;
}

static __always_inline int by_control(struct __sk_buff *packet, struct counters *count)
{
	COUNT(count->control_tx_packets, 1);
	COUNT(count->control_tx_bytes, packet->len);
	return leave_by(CONTROL);
}

static __always_inline int unrouted(struct counters *count)
{
	COUNT(count->unrouted, 1);
	return TC_ACT_SHOT;
}

static __always_inline int by_fibre(struct __sk_buff *packet, __u32 number)
{
	struct fibre *fibre = bpf_map_lookup_elem(&fibres, &number);
	if (!fibre)
		return TC_ACT_SHOT;
	COUNT(fibre->tx_packets, 1);
	COUNT(fibre->tx_bytes, packet->len);
	return leave_by(number);
}

SEC("tc")
int from_host(struct __sk_buff *packet)
{
	struct segment segment = {};
	struct counters *count = own_counters();
	if (!count)
		return TC_ACT_SHOT;
	if (!is_segment(packet, &segment) || !segment.bytes)
		return by_control(packet, count);
	struct route *found = bpf_map_lookup_elem(&route_of_peer, &segment.destination);
	if (!found || found->fibre >= FIBRES)
		return unrouted(count);
	struct route route = *found;
	if (route.tag) {
		if (bpf_skb_vlan_push(packet, bpf_htons(ETH_P_8021Q), route.tag))
			return TC_ACT_SHOT;
		packet->priority = QUEUES | route.tag;
	}
	return by_fibre(packet, route.fibre);
}

/* Into the queue of its peer for as many lightpaths as that has. */
static __always_inline int by_queue(struct __sk_buff *packet, struct peer *peer, struct light *light)
{
	packet->priority = QUEUES | (peer->first + (light->count ? light->count - 1 : 0));
	return leave_by(QUEUE);
}

SEC("tc")
int from_standing_host(struct __sk_buff *packet)
{
	struct segment segment = {};
	struct counters *count = own_counters();
	if (!count)
		return TC_ACT_SHOT;
	if (!is_segment(packet, &segment))
		return by_control(packet, count);
	struct connection connection = {.peer = segment.destination, .ports = segment.ports};
	if (segment.syn) {
		struct track begun = {.left = segment.seq + 1};
		bpf_map_update_elem(&tracks, &connection, &begun, BPF_ANY);
	}
	if (!segment.bytes)
		return by_control(packet, count);
	struct peer *peer = bpf_map_lookup_elem(&peers, &segment.destination);
	if ((segment.tos & 0xfc) == WORDS) {
		struct track *track = bpf_map_lookup_elem(&tracks, &connection);
		if (peer && track) {
			bpf_spin_lock(&peer->lock);
			/* It leaves as a word, and is not missed. */
			if (track->left == segment.seq)
				track->left += segment.bytes;
			bpf_spin_unlock(&peer->lock);
			COUNT(peer->words, segment.bytes);
		}
		return by_control(packet, count);
	}
	struct light *light = bpf_map_lookup_elem(&lights, &segment.destination);
	if (!peer || !light)
		return unrouted(count);
	return by_queue(packet, peer, light);
}

static __always_inline struct carried *carried_on(void *map, const struct lightpath *lightpath)
{
	struct carried *found = bpf_map_lookup_elem(map, lightpath);
	if (found)
		return found;
	struct carried none = {};
	bpf_map_update_elem(map, lightpath, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, lightpath);
}

static __always_inline void count_on(void *map, const struct lightpath *lightpath, __u32 length, __u32 payload)
{
	struct carried *carried = carried_on(map, lightpath);
	if (!carried)
		return;
	COUNT(carried->packets, 1);
	COUNT(carried->bytes, length);
	COUNT(carried->payload, payload);
}

/* How many bytes of a segment that leaves have not left before. */
static __always_inline __u32 fresh_of(const struct segment *segment, struct peer *peer)
{
	struct connection connection = {.peer = segment->destination, .ports = segment->ports};
	struct track *track = bpf_map_lookup_elem(&tracks, &connection);
	if (!track) {
		struct track begun = {.left = segment->seq + segment->bytes};
		bpf_map_update_elem(&tracks, &connection, &begun, BPF_ANY);
		return segment->bytes;
	}
	bpf_spin_lock(&peer->lock);
	__s32 fresh = segment->seq + segment->bytes - track->left;
	if (fresh > 0)
		track->left += fresh;
	bpf_spin_unlock(&peer->lock);
	return fresh > 0 ? fresh : 0;
}

SEC("tc")
int from_queue(struct __sk_buff *packet)
{
	struct segment segment = {};
	struct counters *count = own_counters();
	if (!count || !is_segment(packet, &segment))
		return TC_ACT_SHOT;
	struct peer *peer = bpf_map_lookup_elem(&peers, &segment.destination);
	struct light *light = bpf_map_lookup_elem(&lights, &segment.destination);
	if (!peer || !light)
		return unrouted(count);
	__u32 many = light->count;
	if (!light->lit || !many) {
		COUNT(peer->held, 1);
		return by_queue(packet, peer, light);
	}
	/* The rest by LIGHTPATHS is for the verifier. */
	struct path path = light->paths[light->turn++ % many % LIGHTPATHS];
	struct lightpath lightpath = {.peer = segment.destination, .fibre = path.fibre, .tag = path.tag};
	COUNT(peer->fresh, fresh_of(&segment, peer));
	COUNT(peer->payload, segment.bytes);
	count_on(&sent_on, &lightpath, packet->len, segment.bytes);
	if (path.tag && bpf_skb_vlan_push(packet, bpf_htons(ETH_P_8021Q), path.tag))
		return TC_ACT_SHOT;
	return by_fibre(packet, path.fibre);
}

/* Where light comes in; the fibre's number, or FIBRES when it is not for this O-NIC. The colour has served. */
static __always_inline __u32 take_light(struct __sk_buff *packet)
{
	__u32 ifindex = packet->ifindex;
	__u32 *number = bpf_map_lookup_elem(&fibre_of_ifindex, &ifindex);
	struct fibre *fibre = number ? bpf_map_lookup_elem(&fibres, number) : 0;
	if (!fibre)
		return FIBRES;
	if (!is_mine(packet)) {
		COUNT(fibre->misdirected, 1);
		return FIBRES;
	}
	if (packet->vlan_present && bpf_skb_vlan_pop(packet))
		return FIBRES;
	COUNT(fibre->rx_packets, 1);
	COUNT(fibre->rx_bytes, packet->len);
	return *number;
}

SEC("tc")
int from_fibre(struct __sk_buff *packet)
{
	return take_light(packet) < FIBRES ? leave_by(HOST) : TC_ACT_SHOT;
}

SEC("tc")
int from_standing_fibre(struct __sk_buff *packet)
{
	struct segment segment = {};
	__u16 tag = packet->vlan_present ? packet->vlan_tci & 0x0fff : 0;
	__u32 fibre = take_light(packet);
	if (fibre >= FIBRES || !is_segment(packet, &segment))
		return TC_ACT_SHOT;
	struct lightpath lightpath = {.peer = segment.source, .fibre = fibre, .tag = tag};
	count_on(&received_on, &lightpath, packet->len, segment.bytes);
	return leave_by(HOST);
}

SEC("tc")
int from_control(struct __sk_buff *packet)
{
	struct counters *count = own_counters();
	if (!count)
		return TC_ACT_SHOT;
	/* The rest is for the agent: up into the stack. */
	if (!is_mine(packet))
		return TC_ACT_OK;
	COUNT(count->control_rx_packets, 1);
	COUNT(count->control_rx_bytes, packet->len);
	return leave_by(HOST);
}

char _license[] SEC("license") = "Apache-2.0";
