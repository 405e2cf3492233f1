// SPDX-License-Identifier: Apache-2.0
//
// The packet side of an emulated O-NIC: traffic-control ingress, direct action, one program per kind of port.
//
// `host` is the GPU's network interface, `p0` and `p1` are the fibres to its row's and its column's WSS, `ctl`
// is the control network. Light goes one way, so only payload travels as light; everything else (TCP's
// handshakes and acknowledgements, and whatever is not TCP) takes the control network, as an O-NIC would send
// its transport's acknowledgements there.
//
// The transmitter of a fibre port is one tunable laser, whose colour the WSS at the other end looks up, or an
// array of fixed ones, used at once: then each packet leaves with its colour on it, as an 802.1Q tag, and with
// the priority that names the array's transmitter of that colour to the port's queue.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FIBRES 2
#define TRANSMITTERS 0x10000 /* major number of the classes of an array's queue; minor is the tag */
enum port { HOST = FIBRES, CONTROL, PORTS }; /* fibres are 0 and 1 */

struct counters {
	__u64 light_tx_packets[FIBRES];
	__u64 light_tx_bytes[FIBRES];
	__u64 light_rx_packets[FIBRES];
	__u64 light_rx_bytes[FIBRES];
	__u64 misdirected[FIBRES]; /* light meant for another O-NIC */
	__u64 control_tx_packets;  /* of the GPU, over the control network */
	__u64 control_tx_bytes;
	__u64 control_rx_packets;
	__u64 control_rx_bytes;
	__u64 unrouted; /* payload for a peer that no fibre port leads to */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

/* Interface index of each port, 0 while it is not there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct identity {
	__u32 layout;
	__u8 mac[ETH_ALEN]; /* the GPU's */
	__u8 reserved[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct identity);
} identity SEC(".maps");

struct route {
	__u32 fibre; /* port */
	__u32 tag; /* of an array: channel + 1; 0 of a tunable laser */
};

/* What leads to a peer, by its IPv4 address in network order. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct route);
} route_of_peer SEC(".maps");

#define COUNT(field, n) __sync_fetch_and_add(&(field), (n))

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

/* Bytes of TCP payload, and to whom; 0 for everything that does not travel as light. */
static __always_inline __u32 payload(struct __sk_buff *packet, __u32 *peer)
{
	struct iphdr ip;
	__u8 offset;
	if (packet->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(packet, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	if (ip.protocol != IPPROTO_TCP || (ip.frag_off & bpf_htons(0x1fff)))
		return 0;
	__u32 start = ETH_HLEN + ip.ihl * 4;
	if (bpf_skb_load_bytes(packet, start + 12, &offset, sizeof(offset)))
		return 0;
	__u32 headers = start + (offset >> 4) * 4;
	*peer = ip.daddr;
	/* The frame's length, not the header's: a segment not yet cut has more than a header can say. */
	return packet->len > headers ? packet->len - headers : 0;
}

SEC("tc")
int from_host(struct __sk_buff *packet)
{
	__u32 zero = 0, peer = 0;
	struct counters *count = bpf_map_lookup_elem(&counters, &zero);
	if (!count)
		return TC_ACT_SHOT;
	if (!payload(packet, &peer)) {
		COUNT(count->control_tx_packets, 1);
		COUNT(count->control_tx_bytes, packet->len);
		return leave_by(CONTROL);
	}
	struct route *found = bpf_map_lookup_elem(&route_of_peer, &peer);
	if (!found || found->fibre >= FIBRES) {
		COUNT(count->unrouted, 1);
		return TC_ACT_SHOT;
	}
	struct route route = *found;
	if (route.tag) {
		if (bpf_skb_vlan_push(packet, bpf_htons(ETH_P_8021Q), route.tag))
			return TC_ACT_SHOT;
		packet->priority = TRANSMITTERS | route.tag;
	}
	if (route.fibre == 0) {
		COUNT(count->light_tx_packets[0], 1);
		COUNT(count->light_tx_bytes[0], packet->len);
		return leave_by(0);
	}
	COUNT(count->light_tx_packets[1], 1);
	COUNT(count->light_tx_bytes[1], packet->len);
	return leave_by(1);
}

static __always_inline int from_fibre(struct __sk_buff *packet, int fibre)
{
	__u32 zero = 0;
	struct counters *count = bpf_map_lookup_elem(&counters, &zero);
	if (!count)
		return TC_ACT_SHOT;
	if (!is_mine(packet)) {
		COUNT(count->misdirected[fibre], 1);
		return TC_ACT_SHOT;
	}
	/* The colour has served. */
	if (packet->vlan_present && bpf_skb_vlan_pop(packet))
		return TC_ACT_SHOT;
	COUNT(count->light_rx_packets[fibre], 1);
	COUNT(count->light_rx_bytes[fibre], packet->len);
	return leave_by(HOST);
}

SEC("tc")
int from_fibre_0(struct __sk_buff *packet)
{
	return from_fibre(packet, 0);
}

SEC("tc")
int from_fibre_1(struct __sk_buff *packet)
{
	return from_fibre(packet, 1);
}

SEC("tc")
int from_control(struct __sk_buff *packet)
{
	__u32 zero = 0;
	struct counters *count = bpf_map_lookup_elem(&counters, &zero);
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
