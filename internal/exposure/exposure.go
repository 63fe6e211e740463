// Package exposure decides what of this cluster a peer may reach because of a contract, by the objects that cross
// and their statuses. internal/allow turns that into the rules of a Tunnel.
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

// Exposure is what a provider may reach here because of one contract: the ports of the Services that were sent to
// it, each from the pods that it runs for us of the same namespace, and of those that it is open to. It is derived
// from the objects that cross, so it can be neither more nor less than that.
type Exposure struct {
	Contract string
	// Changed is called when the exposure may have changed.
	Changed func()
	// Home returns how addresses of the provider translate now.
	Home func() Translation

	// Local returns the addresses of the pods of this cluster that run in the provider, by their statuses, and
	// whether all Services were processed since this agent started.
	Local func() (pods map[peering.ObjectRef][]netip.Addr, complete bool)

	mu sync.Mutex
	// ready: all objects that were wanted have been wanted again. known: no part of the exposure has been missing
	// since.
	ready, known bool
	services     map[peering.ObjectRef][]allow.Destination
	// pods has this cluster's own pods alone, by UID: the provider does not decide which pods there are, and in
	// which namespace.
	pods map[string]sources
	// early is the addresses that the provider sent on this stream for other pods, some of which may become known
	// as this cluster's. Until this cluster's pods are known, those that are gone have an empty list.
	early map[string][]netip.Addr
}

// Translation translates an address of the provider to this cluster's alias, if it has one by now.
type Translation func(netip.Addr) (netip.Addr, bool)

// sources is a pod that runs in the provider.
type sources struct {
	namespace string
	// wanted: the pod should run. reported: the provider sent its addresses.
	wanted, reported bool
	// there is its addresses as the provider sent them, home those in its status until then.
	there, home []netip.Addr
}

// Want records a pod, or the endpoints of a Service.
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
	there, reported := e.early[ref.UID]
	if reported {
		pod.there, pod.reported = there, true
		delete(e.early, ref.UID)
	}
	e.keep(ref.UID, pod)
	e.mu.Unlock()
	if len(there) > 0 {
		e.Changed()
	}
}

// keep stores a pod for as long as it matters. The caller holds the lock.
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
		return // a malformed object exposes nothing
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

// Unwant records that an object is no longer wanted. A pod keeps its sources until the provider reports that it is
// gone: until then it ends in order, and may need what it always needed.
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

// Connected records that the provider sends everything again from here on.
func (e *Exposure) Connected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.early = nil
}

// Status records a pod's addresses. Those of a pod that is not known to be this cluster's are kept, within limits,
// until it is or another stream begins: the provider sends them once.
func (e *Exposure) Status(s peering.PodStatus) {
	there := addressesIn(s)
	e.mu.Lock()
	pod, own := e.pods[s.Ref.UID]
	changed := own && (len(pod.home) > 0 || !slices.Equal(pod.there, there))
	switch {
	case own && s.Gone:
		delete(e.pods, s.Ref.UID)
	case own:
		pod.there, pod.home, pod.reported = there, nil, true
		e.keep(s.Ref.UID, pod)
	}
	_, again := e.early[s.Ref.UID]
	switch {
	case e.known && (own || s.Gone):
		delete(e.early, s.Ref.UID)
	case own && s.Gone, !own && (again || len(e.early) < maxUnknownPods):
		if e.early == nil {
			e.early = map[string][]netip.Addr{}
		}
		e.early[s.Ref.UID] = there
	}
	e.mu.Unlock()
	if changed {
		e.Changed()
	}
}

// addressesIn returns a pod's addresses by its status, as the provider knows them: the first few of each family.
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

// addresses returns the aliases of a pod's addresses, at most one of each family, as in Kubernetes.
func (pod sources) addresses(home Translation) []netip.Addr {
	if !pod.reported {
		return pod.home
	}
	var out []netip.Addr
	for _, a := range pod.there {
		a, ok := home(a)
		if ok && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// Readied records that every object that is wanted has been wanted.
func (e *Exposure) Readied() {
	e.mu.Lock()
	e.ready = true
	e.mu.Unlock()
	e.Changed()
}

// learn takes addresses from this cluster's own objects once all Services were processed: the addresses of pods are
// in their statuses, also while the provider cannot be asked.
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
		early, reported := e.early[ref.UID]
		delete(e.early, ref.UID)
		switch {
		case own && pod.reported, reported && len(early) == 0:
			continue
		case reported:
			pod.there, pod.reported = early, true
		default:
			pod.home = addrs
		}
		pod.namespace = ref.Namespace
		e.keep(ref.UID, pod)
	}
	e.known = true
	maps.DeleteFunc(e.early, func(_ string, there []netip.Addr) bool { return len(there) == 0 })
}

// Reachable is what peers may reach of this cluster: its pods, and other hosts.
type Reachable struct {
	Pods  []netip.Prefix
	Hosts []allow.Host
	// Opened is the namespaces whose Services are open to pods of others.
	Opened Opened
	// Thirds is the addresses of this cluster's pods in other peers that the peer may reach
	// through it, by these peers' IDs and by namespace.
	Thirds map[string]map[string][]netip.Addr
}

// opens reports whether a Service of a namespace may open a destination.
func (r Reachable) opens(namespace string, d allow.Destination) bool {
	return slices.ContainsFunc(r.Pods, func(p netip.Prefix) bool { return p.Contains(d.Addr) }) ||
		slices.ContainsFunc(r.Hosts, func(h allow.Host) bool { return h.Opens(namespace, d) })
}

// Exposed returns what is exposed, by namespace, of addresses that are this cluster's own, and whether that is all.
func (e *Exposure) Exposed(own Reachable) (out []allow.Exposed, known bool) {
	e.learn()
	e.mu.Lock()
	defer e.mu.Unlock()
	from, to := e.there(), map[string][]allow.Destination{}
	for ref, open := range e.services {
		for _, d := range open {
			if own.opens(ref.Namespace, d) {
				to[ref.Namespace] = append(to[ref.Namespace], d)
			}
		}
	}
	out = e.passed(from, own.Thirds)
	for namespace, pods := range from {
		x := allow.Exposed{Contract: e.Contract, Namespace: namespace, From: pods, To: to[namespace], Opened: own.Opened.to(namespace, to)}
		if len(pods) > 0 && len(x.To)+len(x.Opened) > 0 {
			out = append(out, x)
		}
	}
	return out, e.known
}

// passed returns what is exposed of this cluster's pods in third peers: endpoints of the Services that were sent to
// the provider, and the addresses of the namespace's pods there. The caller holds the lock.
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
	return e.there()
}

// there is There; the caller holds the lock.
func (e *Exposure) there() map[string][]netip.Addr {
	out, home := map[string][]netip.Addr{}, e.Home()
	for _, pod := range e.pods {
		out[pod.namespace] = append(out[pod.namespace], pod.addresses(home)...)
	}
	return out
}

// Startup knows the contracts whose exposure is not known yet since this agent started. The zero value begins with
// the first call.
type Startup struct {
	mu    sync.Mutex
	since time.Time
	known map[string]bool
}

// Unsure reports whether what is open for a contract has to stay for now. It is false once everything was known,
// and after grace.
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
		if !own.opens(p.Namespace, d) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Namespace != p.Namespace {
			out = append(out, allow.Exposed{Contract: contract, Namespace: p.Namespace, AnySource: true})
		}
		out[len(out)-1].To = append(out[len(out)-1].To, d)
	}
	return out
}
