package tunnel

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// resolver resolves endpoints without blocking: it returns what it knows and resolves names
// in the background.
type resolver struct {
	lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	poke   func()

	mu    sync.Mutex
	names map[string]*resolution
	swept time.Time // when names without callers were last forgotten
	group sync.WaitGroup
}

type resolution struct {
	addrs []netip.Addr
	err   error
	asked time.Time
	used  time.Time
	busy  bool
}

func newResolver(poke func()) *resolver {
	return &resolver{
		poke:  poke,
		names: map[string]*resolution{},
		lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
	}
}

// candidates returns the known addresses of some endpoints, in their order.
// A name is looked up again when the last lookup was longer ago than
// every. Addresses in the prefixes not are left out. bad says which names
// could not be resolved.
func (r *resolver) candidates(ctx context.Context, now time.Time, endpoints []string, every time.Duration, not []netip.Prefix) (out []netip.AddrPort, bad []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range endpoints {
		name, service, err := net.SplitHostPort(e)
		if err != nil {
			continue
		}
		port, err := strconv.ParseUint(service, 10, 16)
		if err != nil {
			continue
		}
		addrs := []netip.Addr{}
		if a, err := netip.ParseAddr(name); err == nil {
			addrs = append(addrs, a)
		} else {
			known := r.ask(ctx, now, name, every)
			addrs = known.addrs
			if known.err != nil {
				bad = append(bad, known.err.Error())
			}
		}
		for _, a := range addrs {
			a = a.Unmap()
			if p := netip.AddrPortFrom(a, uint16(port)); plan.CheckDial(a, not) == nil && !slices.Contains(out, p) && len(out) < 2*plan.MaxEndpoints {
				out = append(out, p)
			}
		}
	}
	return out, bad
}

// ask returns the last result for a name and resolves it again if that is old.
func (r *resolver) ask(ctx context.Context, now time.Time, name string, every time.Duration) *resolution {
	known := r.names[name]
	if known == nil {
		known = &resolution{}
		r.names[name] = known
	}
	known.used = now
	if !known.busy && now.Sub(known.asked) >= every {
		known.busy, known.asked = true, now
		r.group.Go(func() { r.find(ctx, name) })
	}
	if now.Sub(r.swept) >= resolveEvery {
		r.swept = now
		maps.DeleteFunc(r.names, func(_ string, o *resolution) bool { return !o.busy && now.Sub(o.used) > 10*resolveEvery })
	}
	return known
}

func (r *resolver) find(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := r.lookup(ctx, name)
	slices.SortFunc(addrs, func(a, b netip.Addr) int { // IPv4 first: it needs less room
		if a.Unmap().Is4() != b.Unmap().Is4() {
			return map[bool]int{true: -1, false: 1}[a.Unmap().Is4()]
		}
		return a.Compare(b)
	})
	r.mu.Lock()
	known := r.names[name]
	changed := known.err != nil != (err != nil)
	if known.err = err; err == nil { // addresses stay in use while the name server does not answer
		changed = changed || !slices.Equal(known.addrs, addrs)
		known.addrs = addrs
	}
	known.busy = false
	r.mu.Unlock()
	if changed {
		r.poke()
	}
}

// wait returns once all lookups have ended.
func (r *resolver) wait() { r.group.Wait() }
