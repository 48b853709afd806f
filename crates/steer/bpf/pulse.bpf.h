// SPDX-License-Identifier: Apache-2.0 OR MIT
// Who takes new connections. A stack counts its looks at its rings in memory that its process shares (link/xdp/pulse.rs). Whoever
// sleeps is woken by a frame and looks; whoever has not looked since a SYN came to it is stopped, or has other things to do. Before
// all others goes who has looked, found nothing, and has a thread that waits to accept: a process of a pre-forked server that holds
// a connection looks as well, and accepts nothing.

#define ANSWERED 0x80000000U

// A scheduler's time slice or two.
#define PATIENCE_NS 5000000ULL
// Of a connection whose peer has said more than a SYN: the tuple may be in use, and a SYN that somebody forged is not to take it
// away from a stack that is only busy. Less than the second after which a SYN is sent again.
#define LONG_PATIENCE_NS 500000000ULL
// Stacks that are asked whether they take a connection.
#define TRIES 16

// A cache line, so that stacks do not disturb each other.
struct pulse {
	__u64 looks; // 0: it does not say
	__u64 held; // bytes that its process holds for its connections: for other processes, not for this program
	__u64 syn_looks; // when the first SYN came that it had not looked for, as in `unseen`: for its process
	__u64 syn_ns; // on CLOCK_MONOTONIC
	__u64 waits; // as `looks`: since that look a thread waits to accept, and no connection is under way to it
	__u64 changes; // the broker has granted things before, and something has changed since: for its process
	__u64 padding[2];
};

// The first SYN that a stack has not looked for.
struct unseen {
	__u64 looks; // when it came
	__u64 since_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STACKS_MAX);
	__type(key, __u32);
	__type(value, struct pulse);
} pulses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STACKS_MAX);
	__type(key, __u32);
	__type(value, struct unseen);
} unseens SEC(".maps");

// Whether a SYN may go to the stack: it has looked since the last ones came, or they came just now. Then this one is noted.
static __noinline int takes(__u32 stack, __u64 now_ns, __u64 patience_ns)
{
	struct pulse *pulse = bpf_map_lookup_elem(&pulses, &stack);
	struct unseen *unseen = bpf_map_lookup_elem(&unseens, &stack);
	__u64 looks;

	if (!pulse || !unseen)
		return 1;
	looks = *(volatile __u64 *)&pulse->looks;
	if (looks && unseen->looks == looks)
		return now_ns - unseen->since_ns <= patience_ns;
	unseen->since_ns = now_ns;
	unseen->looks = looks;
	pulse->syn_ns = now_ns;
	*(volatile __u64 *)&pulse->syn_looks = looks;
	return 1;
}

// Whether a thread of the stack's waits to accept, and no SYN has been sent there since it began to.
static __noinline int waits(__u32 stack)
{
	struct pulse *pulse = bpf_map_lookup_elem(&pulses, &stack);
	struct unseen *unseen = bpf_map_lookup_elem(&unseens, &stack);
	__u64 looks;

	if (!pulse || !unseen)
		return 0;
	looks = *(volatile __u64 *)&pulse->looks;
	return looks && *(volatile __u64 *)&pulse->waits == looks && unseen->looks != looks;
}

// Whether the stack that has a tuple's last connection takes the next one.
static __noinline int takes_again(const struct group *group, __u32 recorded)
{
	if (group->count < 2)
		return 1;
	return takes(recorded % STACKS_MAX, bpf_ktime_get_ns(), recorded & ANSWERED ? LONG_PATIENCE_NS : PATIENCE_NS);
}

static __always_inline __u32 in_circle(const struct group *group, __u32 place)
{
	if (place >= group->count)
		place -= group->count;
	return group->stacks[place % STACKS_MAX];
}

// The first stack from `place` on that waits for a connection; else the first that takes one; the one at `place` if nobody does.
static __noinline __u32 who_takes(const struct group *group, __u32 place)
{
	__u64 now_ns;

	if (group->count < 2)
		return group->stacks[place % STACKS_MAX];
	now_ns = bpf_ktime_get_ns();
	for (__u32 i = 0; i < STACKS_MAX && i < group->count; i++) {
		__u32 stack = in_circle(group, place + i);

		if (waits(stack) && takes(stack, now_ns, PATIENCE_NS))
			return stack;
	}
	for (__u32 i = 0; i < TRIES && i < group->count; i++) {
		__u32 stack = in_circle(group, place + i);

		if (takes(stack, now_ns, PATIENCE_NS))
			return stack;
	}
	return group->stacks[place % STACKS_MAX];
}
