// SPDX-License-Identifier: Apache-2.0 OR MIT
// Which peers the host's firewall lets through for certain, and which connections it has come to refuse. Filled from user space
// (src/firewall), which evaluates the rules; all others are passed to the kernel, which evaluates them itself.

#define POLICY_NOBODY 0
#define POLICY_EVERYBODY 1

// Of each address that is listened at. A change is one update: from one policy's number to another's.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct listener_key);
	__type(value, __u32);
} firewall_places SEC(".maps");

struct firewall_key {
	__u32 prefix_len; // 32 and the address's
	__u32 policy;
	struct address peer;
};

// Whom a policy lets through.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct firewall_key);
	__type(value, __u32);
} firewall_peers SEC(".maps");

// Connections of stacks that the rules refuse now.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u32);
} firewall_refused SEC(".maps");

// Whether a peer may be a listener's without asking the kernel.
static __noinline int firewall_accepts(const struct listener_key *place, const struct address *peer)
{
	struct firewall_key key = {.prefix_len = 32 + 128};
	__u32 *policy = bpf_map_lookup_elem(&firewall_places, place);
	__u32 *accepts;

	if (!policy || *policy == POLICY_NOBODY)
		return 0;
	if (*policy == POLICY_EVERYBODY)
		return 1;
	key.policy = *policy;
	key.peer = *peer;
	accepts = bpf_map_lookup_elem(&firewall_peers, &key);
	return accepts && *accepts;
}

static __noinline int firewall_refuses(const struct flow_key *flow)
{
	return bpf_map_lookup_elem(&firewall_refused, flow) != 0;
}
