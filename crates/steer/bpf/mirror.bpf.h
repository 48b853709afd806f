// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the kernel's routes and neighbours say of an address: the broker keeps both maps as rtnetlink tells it. Whoever is not
// plainly behind this interface is left to the kernel, which judges by everything that it knows: martians, rp_filter, rules.
//
// bpf_fib_lookup() says nothing where the interface does not forward (net/core/filter.c, BPF_FIB_LKUP_RET_FWD_DISABLED), as on
// most servers.

#define ARPOP_REQUEST 1
#define NEIGHBOUR_SOLICITATION 135
#define ND_OPT_SOURCE_LL_ADDR 1

enum way {
	WAY_KERNELS, // by another interface, by several, by what only the kernel can say
	WAY_MARTIAN, // nobody's: RFC 1122 section 3.2.1.3, and broadcasts
	WAY_OWN,     // this host's, on whatever interface
	WAY_DIRECT,  // on this link
	WAY_GATEWAY, // behind a router on this link
};

struct route_key {
	__u32 prefix_len; // of the address in its 16 bytes
	struct address address;
};

struct route {
	__u32 way;
	struct address gateway;
};

// A hardware address; then whether the routes say that the neighbour is on this link.
struct neighbor {
	__u16 mac[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct route_key);
	__type(value, struct route);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct neighbor);
} neighbors SEC(".maps");

static __always_inline struct route *route_to(const struct address *address)
{
	struct route_key key = {.prefix_len = 128, .address = *address};

	return bpf_map_lookup_elem(&routes, &key);
}

enum verdict {
	REFUSED,  // not from here: the kernel judges
	UNKNOWN,  // from here, but where it is only the kernel can find out
	ACCEPTED, // the frame's source is now where the answers go
};

// Whether the sender of a frame is behind this interface, and where: a router may send from another hardware address than the
// one that it is reached at.
static __noinline int judge(struct xdp_md *ctx, const struct address *sender)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct neighbor *neighbor;
	struct address next_hop;
	struct route *route;
	__u16 *source;

	if ((void *)(ethernet + 1) > end)
		return REFUSED;
	source = (__u16 *)ethernet->h_source;
	// Most are neighbours where they say that they are: that needs no look at the routes.
	neighbor = bpf_map_lookup_elem(&neighbors, sender);
	if (neighbor && neighbor->mac[3] && is_same_mac(source, neighbor->mac))
		return ACCEPTED;
	route = route_to(sender);
	if (!route || (route->way != WAY_DIRECT && route->way != WAY_GATEWAY))
		return REFUSED;
	next_hop = route->way == WAY_GATEWAY ? route->gateway : *sender;
	neighbor = bpf_map_lookup_elem(&neighbors, &next_hop);
	if (!neighbor)
		return UNKNOWN;
	if (is_same_mac(source, neighbor->mac))
		return ACCEPTED;
	// Somebody else than the host itself, or the host has changed: the kernel will ask.
	if (route->way == WAY_DIRECT)
		return UNKNOWN;
	source[0] = neighbor->mac[0];
	source[1] = neighbor->mac[1];
	source[2] = neighbor->mac[2];
	return ACCEPTED;
}

// Whether an address can be no other host's.
static __noinline int is_martian(const struct address *address)
{
	struct route *route = route_to(address);

	return route && (route->way == WAY_MARTIAN || route->way == WAY_OWN);
}

// Who asks for one of our addresses says its own (RFC 826, RFC 4861 section 7.2.3), which the kernel believes; the program's
// first connection comes before the broker can have heard of it. What is known is for the broker to change.
static __noinline void learn(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct address target, sender;
	struct neighbor neighbor = {};
	struct route *route;
	__u16 *mac;

	if ((void *)(ethernet + 1) > end)
		return;
	if (ethernet->h_proto == bpf_htons(ETH_P_ARP)) {
		// RFC 826's packet, of Ethernet and IPv4.
		__be16 *arp = (void *)(ethernet + 1);

		if ((void *)(arp + 14) > end || arp[0] != bpf_htons(1) || arp[1] != bpf_htons(ETH_P_IP) ||
		    arp[2] != bpf_htons(0x0604) || arp[3] != bpf_htons(ARPOP_REQUEST))
			return;
		mac = arp + 4;
		sender.words[0] = target.words[0] = 0;
		sender.words[1] = target.words[1] = 0;
		sender.words[2] = target.words[2] = bpf_htonl(0xffff);
		__builtin_memcpy(&sender.words[3], arp + 7, 4);
		__builtin_memcpy(&target.words[3], arp + 12, 4);
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);
		__u8 *message = (void *)(ip + 1);

		// Its first option is the sender's link-layer address.
		if ((void *)(message + 32) > end || ip->version != 6 || ip->nexthdr != IPPROTO_ICMPV6 || ip->hop_limit != 255)
			return;
		if (message[0] != NEIGHBOUR_SOLICITATION || message[1] || message[24] != ND_OPT_SOURCE_LL_ADDR || message[25] != 1)
			return;
		mac = (__u16 *)(message + 26);
		__builtin_memcpy(&sender, &ip->saddr, sizeof(sender));
		__builtin_memcpy(&target, message + 8, sizeof(target));
		if (!sender.words[0] && !sender.words[1])
			return;
	} else {
		return;
	}
	if (*(__u8 *)mac & 1)
		return;
	route = route_to(&target);
	if (!route || route->way != WAY_OWN)
		return;
	route = route_to(&sender);
	if (!route || route->way != WAY_DIRECT)
		return;
	neighbor.mac[0] = mac[0];
	neighbor.mac[1] = mac[1];
	neighbor.mac[2] = mac[2];
	neighbor.mac[3] = 1;
	bpf_map_update_elem(&neighbors, &sender, &neighbor, BPF_NOEXIST);
}
