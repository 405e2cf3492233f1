// SPDX-License-Identifier: Apache-2.0
//
// The light path of an emulated optical switch: traffic-control ingress, direct action.
//
// Every faceplate interface runs this program on what it receives. A packet is light that entered at an
// ingress port; it leaves at the egress port that the cross-connect names, or it is dropped and counted.
// It never reaches the network stack of the switch's namespace. User space owns every decision and makes
// it visible by replacing one map element; nothing here changes a cross-connect.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "survival.h"

#define MAX_PORTS 8193 /* user space sets the real size before loading */
#define MAX_SELECTIVE_PORTS 129 /* ingress ports of a wavelength-selective switch, and one */
#define VLAN_ID 0x0fff /* of a tag */

/* Where light enters and its colour. Wavelength 0 means that the switch passes every colour alike; a
 * wavelength-selective switch (WSS) stores channel + 1. */
struct light {
	__u32 port;
	__u32 wavelength;
};

struct cross_connect {
	__u32 egress;
	__u32 loss; /* millidecibels, for those who follow light through the switches; not read here */
	__u64 ready_ns; /* CLOCK_MONOTONIC; dark until then */
	__u64 first_ns; /* first packet through this cross-connect, 0 before it */
};

enum admin { ENABLED = 0, DISABLED = 1, FAILED = 2 };

struct port {
	__u32 ifindex; /* 0: nothing is plugged in */
	__u32 admin;
};

struct counters {
	__u64 rx_packets; /* everything that entered, dropped or not */
	__u64 rx_bytes;
	__u64 tx_packets;
	__u64 tx_bytes;
	__u64 dark_drops;      /* the cross-connect was not ready */
	__u64 unset_drops;     /* no cross-connect */
	__u64 blocked_drops;   /* a port on the way is disabled or has failed */
	__u64 unplugged_drops; /* no interface at the egress */
	__u64 gone_ns;         /* last packet passed before the latest change of cross-connect */
	__u64 lit_ns;          /* first packet passed after it */
	__u64 last_ns;         /* last packet passed */
	/* For an egress of a WSS: when a newly tuned ingress sends its first packet there: other ingresses that
	 * are lit towards it at that moment, on the same wavelength and on any. */
	__u64 collisions;
	__u64 receiver_overlaps;
	__u64 dim_drops;   /* the path leaves the receiver too little light */
	__u64 error_drops; /* it leaves little, and the frame had a bit error */
};

HASH(port_of_ifindex, MAX_PORTS, __u32, __u32);

HASH(cross_connects, MAX_PORTS, struct light, struct cross_connect);

/* Light that this switch, the last on its way, would give to a receiver too weak; written by whichever switch
 * changed the path. */
struct dim {
	__u64 dark; /* 1: nothing of it can be read */
	struct survival bits;
};

HASH(dim, MAX_PORTS, struct light, struct dim);

HASH(ports, MAX_PORTS, __u32, struct port);

ARRAY(counters, MAX_PORTS, struct counters);

/* What a tunable transmitter does; of the whole lab, written by the O-NICs and read by every WSS. */

struct laser {
	__u32 channel; /* channel + 1, 0 while it is dark */
	__u32 reserved;
	__u64 ready_ns; /* CLOCK_MONOTONIC; dark before it and from until_ns on */
	__u64 until_ns;
};

HASH(lasers, 1, __u32, struct laser); /* user space puts the lab's map here */

struct source {
	__u32 laser; /* laser id + 1 of the transmitter plugged into an ingress, 0 for none */
	__u32 reserved;
	__u64 audited_ns; /* ready_ns of its light when it was last looked whom it meets */
};

ARRAY(sources, 1, struct source); /* a WSS: its ingress ports and one */

/* The two maps below are the device's memory over a restart; the program does not read them. */

struct label {
	char text[64];
};

HASH(labels, MAX_PORTS, __u32, struct label);

struct identity {
	__u32 layout;
	__u32 size;
	__u32 wavelengths; /* 0: it passes every colour alike */
	__u32 tagged; /* 1: a packet's tag tells its colour */
	char name[64];
};

ARRAY(identity, 1, struct identity);

#define COUNT(field, n) __sync_fetch_and_add(&(field), (n))

static __always_inline int drop(__u64 *count)
{
	COUNT(*count, 1);
	return TC_ACT_SHOT;
}

static __always_inline void pass(struct counters *count, __u64 now, int first)
{
	if (first) {
		count->gone_ns = count->last_ns;
		count->lit_ns = now;
	}
	count->last_ns = now;
}

static __always_inline int is_lit(const struct laser *laser, __u64 now)
{
	return laser->channel && now >= laser->ready_ns && now < laser->until_ns;
}

static __always_inline struct laser *laser_of(const struct source *source)
{
	if (!source->laser)
		return 0;
	__u32 id = source->laser - 1;
	return bpf_map_lookup_elem(&lasers, &id);
}

/* Light that has just been tuned passes for the first time: whom does it meet at the egress? */
static __always_inline void audit(const struct light *light, __u32 egress, __u64 now, struct counters *out)
{
	for (__u32 port = 1; port < MAX_SELECTIVE_PORTS; port++) {
		__u32 ingress = port;
		struct source *other = bpf_map_lookup_elem(&sources, &ingress);
		if (!other)
			break;
		struct laser *laser = laser_of(other);
		if (port == light->port || !laser || !is_lit(laser, now))
			continue;
		struct light there = {.port = port, .wavelength = laser->channel};
		struct cross_connect *path = bpf_map_lookup_elem(&cross_connects, &there);
		if (!path || path->egress != egress || now < path->ready_ns)
			continue;
		COUNT(out->receiver_overlaps, 1);
		if (there.wavelength == light->wavelength)
			COUNT(out->collisions, 1);
	}
}

/* How a switch tells the colour of light: a constant of each program below, so that none pays for another. */
enum colour {
	ANY,	  /* it passes every colour alike */
	OF_LASER, /* that of the tunable transmitter plugged into the ingress */
	OF_TAG,	  /* the packet's own 802.1Q tag, VLAN channel + 1: from an array of fixed transmitters */
};

static __always_inline int cross_connect(struct __sk_buff *packet, enum colour colour)
{
	__u32 ifindex = packet->ifindex;
	__u32 *ingress = bpf_map_lookup_elem(&port_of_ifindex, &ifindex);
	if (!ingress)
		return TC_ACT_SHOT;
	struct light light = {.port = *ingress, .wavelength = 0};
	struct counters *in = bpf_map_lookup_elem(&counters, &light.port);
	if (!in)
		return TC_ACT_SHOT;
	COUNT(in->rx_packets, 1);
	COUNT(in->rx_bytes, packet->len);

	struct port *from = bpf_map_lookup_elem(&ports, &light.port);
	if (from && from->admin != ENABLED)
		return drop(&in->blocked_drops);
	struct source *source = 0;
	__u64 tuned_ns = 0;
	if (colour == OF_LASER) {
		source = bpf_map_lookup_elem(&sources, &light.port);
		struct laser *laser = source ? laser_of(source) : 0;
		if (!laser || !is_lit(laser, bpf_ktime_get_ns()))
			return drop(&in->dark_drops);
		light.wavelength = laser->channel;
		tuned_ns = laser->ready_ns;
	} else if (colour == OF_TAG) {
		if (!packet->vlan_present)
			return drop(&in->dark_drops);
		light.wavelength = packet->vlan_tci & VLAN_ID;
	}
	struct cross_connect *path = bpf_map_lookup_elem(&cross_connects, &light);
	if (!path)
		return drop(&in->unset_drops);
	__u64 now = bpf_ktime_get_ns();
	if (now < path->ready_ns)
		return drop(&in->dark_drops);
	struct dim *weak = bpf_map_lookup_elem(&dim, &light);
	if (weak && weak->dark)
		return drop(&in->dim_drops);
	/* With its check sequence, which is not there. */
	if (weak && !survives(&weak->bits, packet->len + 4, drawn(light.port, in->rx_packets) >> 33))
		return drop(&in->error_drops);
	__u32 egress = path->egress;
	struct port *to = bpf_map_lookup_elem(&ports, &egress);
	if (!to || to->ifindex == 0)
		return drop(&in->unplugged_drops);
	if (to->admin != ENABLED)
		return drop(&in->blocked_drops);
	struct counters *out = bpf_map_lookup_elem(&counters, &egress);
	if (!out)
		return TC_ACT_SHOT;

	if (source && source->audited_ns != tuned_ns) {
		source->audited_ns = tuned_ns;
		audit(&light, egress, now, out);
	}
	int first = path->first_ns == 0;
	if (first)
		path->first_ns = now;
	pass(in, now, first);
	pass(out, now, first);
	COUNT(out->tx_packets, 1);
	COUNT(out->tx_bytes, packet->len);
	return bpf_redirect(to->ifindex, 0);
}

/* An optical circuit switch: the ingress decides. */
SEC("tc")
int cross_connect_ingress(struct __sk_buff *packet)
{
	return cross_connect(packet, ANY);
}

/* A wavelength-selective switch: the ingress and the colour of its light decide. */
SEC("tc")
int wavelength_ingress(struct __sk_buff *packet)
{
	return cross_connect(packet, OF_LASER);
}

/* A WSS whose light says itself which colour it has, so that many colours come in at one ingress at once. */
SEC("tc")
int tagged_ingress(struct __sk_buff *packet)
{
	return cross_connect(packet, OF_TAG);
}

char _license[] SEC("license") = "Apache-2.0";
