// Package exposure says what of this cluster a peer may reach because of a contract, by what
// crosses and what was said of it. internal/allow makes of that what a Tunnel says.
package exposure

import (
	"encoding/json"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/peering"
)

// Exposure is what a provider may reach here because of one contract: the ports
// of the Services that it was told of, each from the pods of the same namespace
// that it runs for us. It is read off what crosses, so it can be neither more nor
// less than that.
type Exposure struct {
	Contract string
	// Changed is called when it may have changed.
	Changed func()
	// Home returns an address of the provider in this cluster's terms, as far as it has one
	// by now.
	Home func(netip.Addr) (netip.Addr, bool)

	// Local returns the addresses of the pods of this cluster that run in the provider,
	// by what their statuses say, and whether all Services were looked at since this
	// agent started.
	Local func() (pods map[peering.ObjectRef][]netip.Addr, complete bool)

	mu sync.Mutex
	// ready says that all that was wanted has been wanted again, known that nothing of
	// what is exposed is missing since.
	ready, known bool
	services     map[peering.ObjectRef][]allow.Destination
	// pods has this cluster's own pods alone, by UID: which pods there are, and in which
	// namespace, is not the provider's to say.
	pods map[string]sources
	// heard is what the provider said of other pods on this stream, of which some may become known
	// as this cluster's: their addresses there. Until this cluster's are, there are none of those that are gone.
	heard map[string][]netip.Addr
}

// sources is a pod that runs in the provider.
type sources struct {
	namespace string
	// wanted says that the pod is to run, said that the provider said of it where.
	wanted, said bool
	// there is its addresses as the provider said them, home those that its status has
	// until then.
	there, home []netip.Addr
}

// Want notes a pod, or what a Service's endpoints are.
func (e *Exposure) Want(o peering.Object) {
	switch o.Ref.Kind {
	case peering.KindPod:
		e.wantPod(o.Ref)
	case peering.KindService:
		e.wantService(o)
	case peering.KindNamespace, peering.KindConfigMap, peering.KindSecret, peering.KindNetworkPolicy, peering.KindClaim:
	}
}

func (e *Exposure) wantPod(ref peering.ObjectRef) {
	e.mu.Lock()
	pod := e.pods[ref.UID]
	pod.namespace, pod.wanted = ref.Namespace, true
	there, said := e.heard[ref.UID]
	if said {
		pod.there, pod.said = there, true
		delete(e.heard, ref.UID)
	}
	e.keep(ref.UID, pod)
	e.mu.Unlock()
	if len(there) > 0 {
		e.Changed()
	}
}

// keep keeps a pod for as long as it matters. The lock is held.
func (e *Exposure) keep(uid string, pod sources) {
	if e.pods == nil {
		e.pods = map[string]sources{}
	}
	e.pods[uid] = pod
	if !pod.wanted && len(pod.there)+len(pod.home) == 0 {
		delete(e.pods, uid)
	}
}

func (e *Exposure) wantService(o peering.Object) {
	var service peering.ServiceObject
	if err := json.Unmarshal(o.JSON, &service); err != nil {
		return // what cannot be read exposes nothing
	}
	open := destinationsOf(&service)
	e.mu.Lock()
	if e.services == nil {
		e.services = map[peering.ObjectRef][]allow.Destination{}
	}
	same := slices.Equal(e.services[o.Ref], open)
	e.services[o.Ref] = open
	e.mu.Unlock()
	if !same {
		e.Changed()
	}
}

func destinationsOf(service *peering.ServiceObject) []allow.Destination {
	var out []allow.Destination
	for _, endpoint := range service.Endpoints {
		a, err := netip.ParseAddr(endpoint.Address)
		if err != nil {
			continue
		}
		for _, p := range service.Ports {
			if number, ok := endpoint.Ports[p.Name]; ok && number > 0 && number <= math.MaxUint16 {
				out = append(out, allow.Destination{
					Addr: a, Port: v1alpha1.DestinationPort{Protocol: corev1.Protocol(p.Protocol), Port: number},
				})
			}
		}
	}
	return out
}

// Unwant notes that an object is not wanted any more. A pod keeps its sources until
// the provider says that it is gone: until then it ends in order, and may need what
// it always needed.
func (e *Exposure) Unwant(ref peering.ObjectRef) {
	e.mu.Lock()
	_, had := e.services[ref]
	delete(e.services, ref)
	if pod, ok := e.pods[ref.UID]; ok && ref.Kind == peering.KindPod {
		pod.wanted = false
		e.keep(ref.UID, pod)
	}
	e.mu.Unlock()
	if had {
		e.Changed()
	}
}

// Connected notes that the provider says all again from here on.
func (e *Exposure) Connected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = nil
}

// Status notes a pod's addresses. What is said of a pod that is not known to be this cluster's is
// kept, in bounds, until it is or another stream begins: the provider says it once.
func (e *Exposure) Status(s peering.PodStatus) {
	there := addressesIn(s)
	e.mu.Lock()
	pod, own := e.pods[s.Ref.UID]
	changed := own && (len(pod.home) > 0 || !slices.Equal(pod.there, there))
	switch {
	case own && s.Gone:
		delete(e.pods, s.Ref.UID)
	case own:
		pod.there, pod.home, pod.said = there, nil, true
		e.keep(s.Ref.UID, pod)
	}
	_, again := e.heard[s.Ref.UID]
	switch {
	case e.known && (own || s.Gone):
		delete(e.heard, s.Ref.UID)
	case own && s.Gone, !own && (again || len(e.heard) < maxUnknownPods):
		if e.heard == nil {
			e.heard = map[string][]netip.Addr{}
		}
		e.heard[s.Ref.UID] = there
	}
	e.mu.Unlock()
	if changed {
		e.Changed()
	}
}

// addressesIn returns a pod's addresses by its status, as the provider has them: the first few
// of each family.
func addressesIn(s peering.PodStatus) []netip.Addr {
	var status corev1.PodStatus
	if s.Gone || json.Unmarshal(s.Status, &status) != nil {
		return nil
	}
	var out []netip.Addr
	count := map[bool]int{}
	for _, ip := range status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if a = a.Unmap(); err == nil && count[a.Is4()] < maxPodIPs {
			count[a.Is4()]++
			out = append(out, a)
		}
	}
	return out
}

// addresses returns a pod's addresses in home terms, at most one of each family, as
// Kubernetes has them.
func (e *Exposure) addresses(pod sources) []netip.Addr {
	if !pod.said {
		return pod.home
	}
	var out []netip.Addr
	for _, a := range pod.there {
		a, ok := e.Home(a)
		if ok && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// Readied notes that every object that is wanted has been wanted.
func (e *Exposure) Readied() {
	e.mu.Lock()
	e.ready = true
	e.mu.Unlock()
	e.Changed()
}

// learn takes over what this cluster's own objects say once all Services were looked
// at: the addresses of pods are in their statuses, also while the provider cannot be
// asked.
func (e *Exposure) learn() {
	e.mu.Lock()
	due := e.ready && !e.known
	e.mu.Unlock()
	if !due {
		return
	}
	pods, complete := e.Local()
	if !complete {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, addrs := range pods {
		pod, own := e.pods[ref.UID]
		heard, said := e.heard[ref.UID]
		delete(e.heard, ref.UID)
		switch {
		case own && pod.said, said && len(heard) == 0:
			continue
		case said:
			pod.there, pod.said = heard, true
		default:
			pod.home = addrs
		}
		pod.namespace = ref.Namespace
		e.keep(ref.UID, pod)
	}
	e.known = true
	maps.DeleteFunc(e.heard, func(_ string, there []netip.Addr) bool { return len(there) == 0 })
}

// Reachable is what peers may reach of this cluster: its pods, and hosts that are none.
type Reachable struct {
	Pods  []netip.Prefix
	Hosts []allow.Host
	// Thirds is the addresses of this cluster's pods in other peers that the peer may reach
	// through it, by these peers' IDs and by namespace.
	Thirds map[string]map[string][]netip.Addr
}

// holds says whether a Service of a namespace may open a destination.
func (r Reachable) holds(namespace string, d allow.Destination) bool {
	return slices.ContainsFunc(r.Pods, func(p netip.Prefix) bool { return p.Contains(d.Addr) }) ||
		slices.ContainsFunc(r.Hosts, func(h allow.Host) bool { return h.Opens(namespace, d) })
}

// Exposed returns what is exposed, by namespace, of addresses that are this
// cluster's own, and whether that is all.
func (e *Exposure) Exposed(own Reachable) (out []allow.Exposed, known bool) {
	e.learn()
	e.mu.Lock()
	defer e.mu.Unlock()
	from, to := map[string][]netip.Addr{}, map[string][]allow.Destination{}
	for _, pod := range e.pods {
		from[pod.namespace] = append(from[pod.namespace], e.addresses(pod)...)
	}
	for ref, open := range e.services {
		for _, d := range open {
			if own.holds(ref.Namespace, d) {
				to[ref.Namespace] = append(to[ref.Namespace], d)
			}
		}
	}
	out = e.passed(from, own.Thirds)
	for namespace, open := range to {
		if len(from[namespace]) > 0 {
			out = append(out, allow.Exposed{Contract: e.Contract, Namespace: namespace, From: from[namespace], To: open})
		}
	}
	return out, e.known
}

// passed returns what is exposed of this cluster's pods in third peers: endpoints of the Services that
// the provider was told of, and the addresses that the namespace's pods there come from. The lock is
// held.
func (e *Exposure) passed(from map[string][]netip.Addr, thirds map[string]map[string][]netip.Addr) (out []allow.Exposed) {
	for third, pods := range thirds {
		for namespace, addrs := range pods {
			if len(from[namespace]) == 0 {
				continue
			}
			x := allow.Exposed{Contract: e.Contract, Namespace: namespace, Third: third, From: from[namespace], Known: addrs}
			for ref, open := range e.services {
				for _, d := range open {
					if ref.Namespace == namespace && slices.Contains(addrs, d.Addr) {
						x.To = append(x.To, d)
					}
				}
			}
			out = append(out, x)
		}
	}
	return out
}

// There returns the addresses of this cluster's pods in the provider, by namespace.
func (e *Exposure) There() map[string][]netip.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]netip.Addr{}
	for _, pod := range e.pods {
		out[pod.namespace] = append(out[pod.namespace], e.addresses(pod)...)
	}
	return out
}

// Startup says of which contracts it is not known yet, since this agent started,
// what they expose. The zero value begins when it is first asked.
type Startup struct {
	mu    sync.Mutex
	since time.Time
	known map[string]bool
}

// Unsure says whether what stands of a contract is to stay for now. Once all of it was
// known it never is again, nor after grace.
func (s *Startup) Unsure(contract string, known bool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since, s.known = now, map[string]bool{}
	}
	if now.Sub(s.since) >= grace {
		s.known = nil
		return false
	}
	if known {
		s.known[contract] = true
	}
	return !s.known[contract]
}

// Ports returns ports as they are exposed, by namespace.
func Ports(contract string, open []services.Port, own Reachable) []allow.Exposed {
	var out []allow.Exposed
	for _, p := range open {
		d := allow.Destination{Addr: p.Addr, Port: v1alpha1.DestinationPort{Protocol: p.Protocol, Port: p.Port}}
		if !own.holds(p.Namespace, d) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Namespace != p.Namespace {
			out = append(out, allow.Exposed{Contract: contract, Namespace: p.Namespace, AnySource: true})
		}
		out[len(out)-1].To = append(out[len(out)-1].To, d)
	}
	return out
}
