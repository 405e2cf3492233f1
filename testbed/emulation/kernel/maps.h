// SPDX-License-Identifier: Apache-2.0
//
// How the eBPF programs declare their maps.

#define MAP(name, kind, flags, entries, key_type, value_type) \
	struct { \
		__uint(type, kind); \
		__uint(map_flags, flags); \
		__uint(max_entries, entries); \
		__type(key, key_type); \
		__type(value, value_type); \
	} name SEC(".maps")

/* Without preallocation: an element is replaced as a whole, so that a packet never sees half of a change, such
 * as a new egress with an old ready time, as it could with an array. */
#define HASH(name, entries, key, value) MAP(name, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, entries, key, value)
#define ARRAY(name, entries, value) MAP(name, BPF_MAP_TYPE_ARRAY, 0, entries, __u32, value)
