// SPDX-License-Identifier: Apache-2.0 OR MIT
// Which stack a received frame belongs to. Everything that no stack asked for passes to the kernel untouched.
//
// The order: listener (its connections are remembered one by one, so that a later change of the listener's stacks moves
// none of them), connection, claimed ports, kernel.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define STACKS_MAX 64
#define FRAGMENT 0x3fff // MF and the offset, not DF

// Set by the loader before the program is verified.
const volatile __u32 QUEUES = 1;
const volatile __u64 HASH_KEY = 0;

// How much there is to look up: an empty map costs nothing.
struct config {
	__u32 listeners;
	__u32 connections;
	__u32 claims;
	__u32 unused;
};

// What became of the frames.
struct counters {
	__u64 to_listener;
	__u64 to_connection;
	__u64 to_claim;
	__u64 flows_recorded;
	__u64 passed_fragment;
	__u64 passed_other;
};

struct listener_key {
	__be32 address;
	__be16 port;
	__u16 zero;
};

// The stacks that accept a listener's new connections.
struct group {
	__u64 members; // bit s: stack s
	__u32 count;
	__u32 changed; // 0 while all of its connections ever went to stacks[0]
	__u16 stacks[STACKS_MAX];
};

// As seen from here: local is the frame's destination.
struct flow_key {
	__be32 local_address;
	__be32 remote_address;
	__be16 local_port;
	__be16 remote_port;
};

// All frames to an address and a range of ports: stack = first + port % count.
struct claim {
	__u16 port_low; // host order, inclusive
	__u16 port_high;
	__u16 first;
	__u16 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listener_key);
	__type(value, struct group);
} listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, __u32);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct flow_key);
	__type(value, __u32);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct claim);
} claims SEC(".maps");

// stack * QUEUES + queue
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, STACKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

// If the stack is gone, the kernel answers for it.
static __always_inline int deliver(struct xdp_md *ctx, __u32 stack)
{
	return bpf_redirect_map(&xsks, stack * QUEUES + ctx->rx_queue_index, XDP_PASS);
}

// Keyed, because peers choose their ports: multiply and xor-shift, twice (the constants are splitmix64's).
static __always_inline __u32 hash(const struct flow_key *flow)
{
	__u64 addresses = (__u64)flow->local_address << 32 | flow->remote_address;
	__u64 ports = (__u64)flow->local_port << 16 | flow->remote_port;
	__u64 mixed = (addresses ^ HASH_KEY) * 0xbf58476d1ce4e5b9ULL;

	mixed = (mixed ^ mixed >> 31 ^ ports) * 0x94d049bb133111ebULL;
	mixed = (mixed ^ mixed >> 30 ^ HASH_KEY) * 0xbf58476d1ce4e5b9ULL;
	return mixed >> 32;
}

// Whether the kernel has a connection with this tuple: begun, open, or in TIME-WAIT.
static __always_inline int is_the_kernels(struct xdp_md *ctx, const struct flow_key *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	int connection;

	tuple.ipv4.saddr = flow->remote_address;
	tuple.ipv4.daddr = flow->local_address;
	tuple.ipv4.sport = flow->remote_port;
	tuple.ipv4.dport = flow->local_port;
	socket = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	connection = socket->state != BPF_TCP_LISTEN;
	bpf_sk_release(socket);
	return connection;
}

SEC("xdp")
int overfly_steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = data + sizeof(*ethernet);
	struct config *sizes;
	struct counters *count;
	struct tcphdr *tcp;
	struct flow_key flow;
	__u32 zero = 0, header_len;

	sizes = bpf_map_lookup_elem(&config, &zero);
	count = bpf_map_lookup_elem(&counters, &zero);
	if (!sizes || !count)
		return XDP_PASS;
	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 ||
	    ip->protocol != IPPROTO_TCP || (ethernet->h_dest[0] & 1) || ctx->rx_queue_index >= QUEUES)
		goto other;
	if (ip->frag_off & bpf_htons(FRAGMENT)) {
		count->passed_fragment++;
		return XDP_PASS;
	}
	header_len = ip->ihl * 4;
	if (header_len < sizeof(*ip))
		goto other;
	tcp = (void *)ip + header_len;
	if ((void *)(tcp + 1) > end)
		goto other;

	flow.local_address = ip->daddr;
	flow.remote_address = ip->saddr;
	flow.local_port = tcp->dest;
	flow.remote_port = tcp->source;

	if (sizes->listeners) {
		struct listener_key key = {.address = ip->daddr, .port = tcp->dest};
		struct group *group = bpf_map_lookup_elem(&listeners, &key);

		if (group) {
			__u32 syn = tcp->syn && !tcp->ack;
			__u32 *recorded, stack, index;

			recorded = bpf_map_lookup_elem(&flows, &flow);
			// A new connection with an old one's tuple stays where it was only if that stack still accepts.
			if (recorded && (!syn || group->members >> (*recorded & 63) & 1)) {
				count->to_listener++;
				return deliver(ctx, *recorded);
			}
			// It was the kernel's before a stack joined the listener, and stays so.
			if (!syn && is_the_kernels(ctx, &flow))
				goto other;
			if (group->count) {
				index = (__u64)hash(&flow) * group->count >> 32;
				stack = group->stacks[index & (STACKS_MAX - 1)];
				if (syn) {
					bpf_map_update_elem(&flows, &flow, &stack, BPF_ANY);
					count->flows_recorded++;
				}
				count->to_listener++;
				return deliver(ctx, stack);
			}
			// Nobody accepts here any more; only connections that were accepted go on.
		}
	}
	if (sizes->connections) {
		__u32 *stack = bpf_map_lookup_elem(&connections, &flow);

		if (stack) {
			count->to_connection++;
			return deliver(ctx, *stack);
		}
	}
	if (sizes->claims) {
		struct claim *claim = bpf_map_lookup_elem(&claims, &flow.local_address);
		__u16 port = bpf_ntohs(flow.local_port);

		if (claim && claim->count && port >= claim->port_low && port <= claim->port_high) {
			count->to_claim++;
			return deliver(ctx, claim->first + port % claim->count);
		}
	}
other:
	count->passed_other++;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
