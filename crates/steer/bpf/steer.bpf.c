// SPDX-License-Identifier: Apache-2.0 OR MIT
// Which stack a received frame belongs to. Everything that no stack asked for passes to the kernel untouched, and so does
// whatever the kernel might refuse or answer by another way (mirror.bpf.h): its own socket stands behind every listener.
//
// The order: TCP connections of listeners (remembered one by one, so that a later change of the listener's stacks moves none
// of them), connections that a stack opened, listeners, claimed ports, kernel. An ICMP error goes where the answers go to
// the packet that it quotes.

#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define STACKS_MAX 64
#define FRAGMENT 0x3fff // MF and the offset, not DF
#define FRAGMENT_OFFSET 0x1fff
#define EXTENSIONS_MAX 4
// include/uapi/linux/icmp.h, which needs headers that -target bpf does not find.
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMP_HEADER_LEN 8

// Set by the loader before the program is verified.
const volatile __u32 QUEUES = 1;
const volatile __u64 HASH_KEY = 0;
// Behind the driver several datagrams that a peer sent in one call (UDP_SEGMENT) come as one packet that does not say where each ends: it
// is the kernel's, which knows.
enum {
	DATAGRAMS_ALONE, // attached in the driver, where each is a packet
	DATAGRAMS_UNKNOWN, // this kernel does not let a program look: all are the kernel's
	DATAGRAMS_TOLD_APART,
};
const volatile __u32 DATAGRAMS = DATAGRAMS_ALONE;

// What a program attached behind the driver is called with, and what stands behind the packet: include/net/xdp.h, include/linux/skbuff.h.
// Where the fields are in the kernel that runs, its BTF says (CO-RE).
struct xdp_buff {
	void *data_hard_start;
	__u32 frame_sz;
} __attribute__((preserve_access_index));
struct skb_shared_info {
	__u16 gso_size;
} __attribute__((preserve_access_index));
#define CACHE_BYTES 64 // SMP_CACHE_BYTES where this program runs: x86-64, arm64

struct config {
	// How much there is to look up: an empty map costs nothing.
	__u32 connections;
	__u32 claims;
	// The interface's hardware address, padded: frames for others that share the link's interface are the kernel's.
	__u16 mac[4];
	// Whether the firewall's rules have to be asked: of new connections, and of those that stacks have.
	__u32 firewall_judges;
	__u32 firewall_refusals;
	// Whoever sends is taken to be where the frame says: a load generator's server, which has no kernel to fall back to.
	__u32 trusts_senders;
	__u32 padding;
	// Who has each place: generation << 6 | stack (31 bits), so that a place's next stack is not taken for its last. 0: nobody.
	__u32 owners[STACKS_MAX];
	// A bit for each port that somebody listens at, with whatever protocol and address: no others are looked up.
	__u64 listening[65536 / 64];
};

// What became of the frames.
struct counters {
	__u64 to_listener;
	__u64 to_connection;
	__u64 to_claim;
	__u64 icmp_errors; // in these three
	__u64 flows_recorded;
	__u64 passed_fragment;
	__u64 passed_source; // what opens, from where only the kernel can judge
	__u64 passed_other;
	__u64 passed_firewall; // the kernel judges them itself
	__u64 dropped_firewall;
};

// IPv4 as ::ffff:a.b.c.d.
struct address {
	__be32 words[4];
};

struct listener_key {
	struct address address;
	__be16 port;
	__u16 protocol;
};

// The stacks that accept a listener's new connections, or get its datagrams.
struct group {
	__u64 members; // bit s: stack s
	__u64 count;
	__u16 stacks[STACKS_MAX];
};

// As seen from here: local is the frame's destination.
struct flow_key {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
	__u32 protocol;
};

struct claim_key {
	struct address address;
	__u32 protocol;
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

// TCP connections of listeners, and their owners; ANSWERED once the peer has sent more than a SYN.
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
	__type(key, struct claim_key);
	__type(value, struct claim);
} claims SEC(".maps");

// stack * QUEUES + queue
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, STACKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

static __always_inline int is_same_mac(const __u16 *one, const __u16 *other)
{
	return !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]));
}

#include "mirror.bpf.h"
#include "firewall.bpf.h"
#include "pulse.bpf.h"

static __always_inline void from_ipv4(struct address *to, __be32 address)
{
	to->words[0] = 0;
	to->words[1] = 0;
	to->words[2] = bpf_htonl(0xffff);
	to->words[3] = address;
}

static __always_inline void from_ipv6(struct address *to, const struct in6_addr *address)
{
	to->words[0] = address->s6_addr32[0];
	to->words[1] = address->s6_addr32[1];
	to->words[2] = address->s6_addr32[2];
	to->words[3] = address->s6_addr32[3];
}

static __always_inline __u64 half(const struct address *address, int at)
{
	return (__u64)address->words[at] << 32 | address->words[at + 1];
}

// Keyed, because peers choose their addresses and ports: multiply and xor-shift (the constants are splitmix64's).
static __always_inline __u32 hash(const struct flow_key *flow)
{
	__u64 ports = (__u64)flow->local_port << 16 | flow->remote_port;
	__u64 mixed = (half(&flow->remote, 2) ^ HASH_KEY) * 0xbf58476d1ce4e5b9ULL;

	mixed = (mixed ^ mixed >> 31 ^ half(&flow->remote, 0)) * 0x94d049bb133111ebULL;
	mixed = (mixed ^ mixed >> 30 ^ half(&flow->local, 2) ^ half(&flow->local, 0)) * 0xbf58476d1ce4e5b9ULL;
	mixed = (mixed ^ mixed >> 31 ^ ports) * 0x94d049bb133111ebULL;
	mixed = (mixed ^ mixed >> 30 ^ HASH_KEY) * 0xbf58476d1ce4e5b9ULL;
	return mixed >> 32;
}

// Whether the kernel has a TCP connection with this tuple: begun, open, or in TIME-WAIT.
static __noinline int is_the_kernels(struct xdp_md *ctx, const struct flow_key *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	int connection;

	if (!flow->local.words[0] && !flow->local.words[1] && flow->local.words[2] == bpf_htonl(0xffff)) {
		tuple.ipv4.saddr = flow->remote.words[3];
		tuple.ipv4.daddr = flow->local.words[3];
		tuple.ipv4.sport = flow->remote_port;
		tuple.ipv4.dport = flow->local_port;
		socket = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &flow->remote, sizeof(flow->remote));
		__builtin_memcpy(tuple.ipv6.daddr, &flow->local, sizeof(flow->local));
		tuple.ipv6.sport = flow->remote_port;
		tuple.ipv6.dport = flow->local_port;
		socket = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return 0;
	connection = socket->state != BPF_TCP_LISTEN;
	bpf_sk_release(socket);
	return connection;
}

// Skips the extension headers that may stand before a transport header (RFC 8200 section 4); what `*protocol` is then says
// what stands at the result, a fragment header perhaps. Null if they are cut off, or if the packet is to go further.
static __always_inline void *skip_extensions(void *cursor, void *end, __u8 *protocol)
{
#pragma unroll
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 *extension = cursor;

		if (*protocol != IPPROTO_HOPOPTS && *protocol != IPPROTO_DSTOPTS && *protocol != IPPROTO_ROUTING)
			break;
		if ((void *)(extension + 8) > end)
			return 0;
		// Segments left (RFC 8200 section 4.4).
		if (*protocol == IPPROTO_ROUTING && extension[3])
			return 0;
		*protocol = extension[0];
		cursor += ((__u32)extension[1] + 1) * 8;
	}
	return cursor;
}

// The flow of a packet that an ICMP error quotes and that `receiver` sent. 0 if the message is no such error.
static __noinline int quoted_ipv4(void *message, void *end, struct flow_key *flow, __be32 receiver)
{
	struct iphdr *ip = message + ICMP_HEADER_LEN;
	__u8 type;
	__be16 *ports;

	if ((void *)(ip + 1) > end)
		return 0;
	type = *(__u8 *)message;
	if (type != ICMP_DEST_UNREACH && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETERPROB)
		return 0;
	if (ip->version != 4 || ip->ihl < 5 || ip->saddr != receiver || ip->frag_off & bpf_htons(FRAGMENT_OFFSET))
		return 0;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return 0;
	ports = (void *)ip + ip->ihl * 4;
	if ((void *)(ports + 2) > end)
		return 0;
	from_ipv4(&flow->local, ip->saddr);
	from_ipv4(&flow->remote, ip->daddr);
	flow->local_port = ports[0];
	flow->remote_port = ports[1];
	flow->protocol = ip->protocol;
	return 1;
}

// As above; `flow->local` says who received the error.
static __noinline int quoted_ipv6(void *message, void *end, struct flow_key *flow)
{
	struct icmp6hdr *icmp = message;
	struct ipv6hdr *ip = message + sizeof(*icmp);
	struct address source;
	__be16 *ports;
	__u8 protocol;

	if ((void *)(ip + 1) > end)
		return 0;
	if (icmp->icmp6_type < ICMPV6_DEST_UNREACH || icmp->icmp6_type > ICMPV6_PARAMPROB)
		return 0;
	from_ipv6(&source, &ip->saddr);
	if (ip->version != 6 || half(&source, 0) != half(&flow->local, 0) || half(&source, 2) != half(&flow->local, 2))
		return 0;
	protocol = ip->nexthdr;
	ports = skip_extensions(ip + 1, end, &protocol);
	if (!ports || (void *)(ports + 2) > end || (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP))
		return 0;
	from_ipv6(&flow->remote, &ip->daddr);
	flow->local_port = ports[0];
	flow->remote_port = ports[1];
	flow->protocol = protocol;
	return 1;
}

// Whether a packet is several datagrams (xdp_get_shared_info_from_buff(), net/core/dev.c). Yes if that can't be seen.
static __noinline int is_of_several(struct xdp_md *ctx)
{
	struct xdp_buff *buff = (void *)ctx;
	__u64 shared = bpf_core_type_size(struct skb_shared_info);
	__u64 start;
	__u32 length;
	__u16 size;

	if (bpf_core_read(&start, sizeof(start), &buff->data_hard_start) || bpf_core_read(&length, sizeof(length), &buff->frame_sz))
		return 1;
	shared = start + length - ((shared + CACHE_BYTES - 1) & -CACHE_BYTES);
	return bpf_core_read(&size, sizeof(size), &((struct skb_shared_info *)shared)->gso_size) || size;
}

static __always_inline int steer(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	__u32 zero = 0, opens = 0, is_error = 0, *recorded = 0, stack;
	__u16 *destination = (__u16 *)ethernet->h_dest;
	struct counters *count;
	struct config *config_now;
	struct flow_key flow;
	void *transport;
	__u8 protocol;
	int listening;
	__u16 port;

	config_now = bpf_map_lookup_elem(&config, &zero);
	count = bpf_map_lookup_elem(&counters, &zero);
	if (!config_now || !count)
		return XDP_PASS;
	if ((void *)(ethernet + 1) > end || ctx->rx_queue_index >= QUEUES)
		goto other;
	if (!is_same_mac(destination, config_now->mac))
		goto neighborly;

	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
			goto other;
		protocol = ip->protocol;
		if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_ICMP)
			goto other;
		if (ip->frag_off & bpf_htons(FRAGMENT))
			goto fragment;
		transport = (void *)ip + ip->ihl * 4;
		if (protocol == IPPROTO_ICMP) {
			struct address sender;

			from_ipv4(&sender, ip->saddr);
			if (!quoted_ipv4(transport, end, &flow, ip->daddr) || is_martian(&sender))
				goto other;
			is_error = 1;
		} else {
			from_ipv4(&flow.local, ip->daddr);
			from_ipv4(&flow.remote, ip->saddr);
		}
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end || ip->version != 6)
			goto other;
		protocol = ip->nexthdr;
		transport = skip_extensions(ip + 1, end, &protocol);
		if (!transport)
			goto other;
		if (protocol == IPPROTO_FRAGMENT)
			goto fragment;
		from_ipv6(&flow.local, &ip->daddr);
		from_ipv6(&flow.remote, &ip->saddr);
		// Unspecified, loopback, and what would be taken for IPv4.
		if (!half(&flow.local, 0) || !half(&flow.remote, 0))
			goto other;
		if (protocol == IPPROTO_ICMPV6) {
			struct address sender = flow.remote;

			if (!quoted_ipv6(transport, end, &flow))
				goto neighborly;
			if (is_martian(&sender))
				goto other;
			is_error = 1;
		}
	} else {
		goto neighborly;
	}

	if (!is_error) {
		if (protocol == IPPROTO_TCP) {
			struct tcphdr *tcp = transport;

			if ((void *)(tcp + 1) > end)
				goto other;
			opens = tcp->syn && !tcp->ack;
			flow.local_port = tcp->dest;
			flow.remote_port = tcp->source;
		} else if (protocol == IPPROTO_UDP) {
			struct udphdr *udp = transport;

			if ((void *)(udp + 1) > end || DATAGRAMS == DATAGRAMS_UNKNOWN)
				goto other;
			flow.local_port = udp->dest;
			flow.remote_port = udp->source;
		} else {
			goto other;
		}
		flow.protocol = protocol;
	}

	if (config_now->firewall_refusals && !opens && firewall_refuses(&flow)) {
		count->dropped_firewall++;
		return XDP_DROP;
	}
	port = bpf_ntohs(flow.local_port);
	listening = config_now->listening[port / 64] >> port % 64 & 1;
	if (DATAGRAMS == DATAGRAMS_TOLD_APART && flow.protocol == IPPROTO_UDP && !is_error &&
	    (listening || config_now->connections || config_now->claims) && is_of_several(ctx))
		goto other;
	if (listening && flow.protocol == IPPROTO_TCP) {
		recorded = bpf_map_lookup_elem(&flows, &flow);
		if (recorded && config_now->owners[*recorded % STACKS_MAX] != (*recorded & ~ANSWERED))
			recorded = 0;
		if (recorded && !opens) {
			if (!(*recorded & ANSWERED) && !is_error)
				*recorded |= ANSWERED;
			stack = *recorded % STACKS_MAX;
			count->to_listener++;
			goto deliver;
		}
	}
	if (config_now->connections) {
		__u32 *owner = bpf_map_lookup_elem(&connections, &flow);

		if (owner) {
			stack = *owner;
			count->to_connection++;
			goto deliver;
		}
	}
	if (listening) {
		struct listener_key key;
		struct group *group;

		key.address = flow.local;
		key.port = flow.local_port;
		key.protocol = flow.protocol;
		group = bpf_map_lookup_elem(&listeners, &key);
		// Where nobody accepts any more, only connections that were accepted go on.
		if (group && group->count) {
			int judgement;

			// It was the kernel's before a stack joined the listener, and stays so.
			if (flow.protocol == IPPROTO_TCP && !opens && is_the_kernels(ctx, &flow))
				goto other;
			judgement = is_error || config_now->trusts_senders ? ACCEPTED : judge(ctx, &flow.remote);

			// Connections that go on and are not remembered stay with whoever has them, wherever the peer is now.
			if (judgement == REFUSED || (judgement == UNKNOWN && (opens || flow.protocol == IPPROTO_UDP))) {
				count->passed_source++;
				goto kernels;
			}
			if (config_now->firewall_judges && !firewall_accepts(&key, &flow.remote)) {
				count->passed_firewall++;
				goto kernels;
			}
			// A new connection with an old one's tuple stays where it was only if that stack still accepts, and takes it.
			if (recorded && group->members >> *recorded % STACKS_MAX & 1 && takes_again(group, *recorded)) {
				stack = *recorded % STACKS_MAX;
				count->to_listener++;
				goto deliver;
			}
			stack = hash(&flow) * group->count >> 32;
			stack = opens ? who_takes(group, stack) : group->stacks[stack % STACKS_MAX];
			if (opens) {
				__u32 owner = config_now->owners[stack % STACKS_MAX];

				bpf_map_update_elem(&flows, &flow, &owner, BPF_ANY);
				count->flows_recorded++;
			}
			count->to_listener++;
			goto deliver;
		}
	}
	if (config_now->claims) {
		struct claim_key key = {.address = flow.local, .protocol = flow.protocol};
		struct claim *claim = bpf_map_lookup_elem(&claims, &key);

		if (claim && claim->count && port >= claim->port_low && port <= claim->port_high) {
			stack = claim->first + port % claim->count;
			count->to_claim++;
			goto deliver;
		}
	}
	goto other;
neighborly:
	learn(ctx);
other:
	count->passed_other++;
	return XDP_PASS;
fragment:
	count->passed_fragment++;
	return XDP_PASS;
kernels:
	// What follows is the kernel's, too, not that of an older connection with the same tuple.
	if (recorded)
		bpf_map_delete_elem(&flows, &flow);
	return XDP_PASS;
deliver:
	if (is_error)
		count->icmp_errors++;
	// If the stack is gone, the kernel answers for it.
	return bpf_redirect_map(&xsks, stack * QUEUES + ctx->rx_queue_index, XDP_PASS);
}

SEC("xdp")
int overfly_steer(struct xdp_md *ctx)
{
	return steer(ctx);
}

// The same for packets of several buffers, of which the first holds the headers: whose does not is the kernel's.
SEC("xdp.frags")
int overfly_steer_long(struct xdp_md *ctx)
{
	return steer(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
