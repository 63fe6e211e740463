package agent

import (
	"context"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// exposure is what a provider may reach here because of one contract: the ports
// of the Services that it was told of, each from the pods of the same namespace
// that it runs for us. It is read off what crosses, so it can be neither more nor
// less than that.
type exposure struct {
	contract string
	// changed is called when it may have changed.
	changed func()
	// home returns an address of the provider in this cluster's terms, as far as it has one
	// by now.
	home func(netip.Addr) (netip.Addr, bool)

	// local returns the addresses of the pods of this cluster that run in the provider,
	// by what their statuses say, and whether all Services were looked at since this
	// agent started.
	local func() (pods map[peering.ObjectRef][]netip.Addr, complete bool)

	mu sync.Mutex
	// ready says that all that was wanted has been wanted again, known that nothing of
	// what is exposed is missing since.
	ready, known bool
	services     map[peering.ObjectRef][]allow.Destination
	// pods has this cluster's own pods alone, by UID: which pods there are, and in which
	// namespace, is not the provider's to say.
	pods map[string]sources
	// heard is what the provider said of other pods until it was known which are this
	// cluster's: their addresses there, none of those that are gone.
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

// want notes a pod, or what a Service's endpoints are.
func (e *exposure) want(o peering.Object) {
	switch o.Ref.Kind {
	case peering.KindPod:
		e.wantPod(o.Ref)
	case peering.KindService:
		e.wantService(o)
	case peering.KindNamespace, peering.KindConfigMap, peering.KindSecret, peering.KindClaim:
	}
}

func (e *exposure) wantPod(ref peering.ObjectRef) {
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
		e.changed()
	}
}

// keep keeps a pod for as long as it matters. The lock is held.
func (e *exposure) keep(uid string, pod sources) {
	if e.pods == nil {
		e.pods = map[string]sources{}
	}
	e.pods[uid] = pod
	if !pod.wanted && len(pod.there)+len(pod.home) == 0 {
		delete(e.pods, uid)
	}
}

func (e *exposure) wantService(o peering.Object) {
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
		e.changed()
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

// unwant notes that an object is not wanted any more. A pod keeps its sources until
// the provider says that it is gone: until then it ends in order, and may need what
// it always needed.
func (e *exposure) unwant(ref peering.ObjectRef) {
	e.mu.Lock()
	_, had := e.services[ref]
	delete(e.services, ref)
	if pod, ok := e.pods[ref.UID]; ok && ref.Kind == peering.KindPod {
		pod.wanted = false
		e.keep(ref.UID, pod)
	}
	e.mu.Unlock()
	if had {
		e.changed()
	}
}

// connected notes that the provider says all again from here on.
func (e *exposure) connected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = nil
}

// status notes a pod's addresses. What is said of a pod that is not this cluster's is kept
// until its own are known, and never after.
func (e *exposure) status(s peering.PodStatus) {
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
	if !e.known && (own && s.Gone || !own && len(e.heard) < maxUnknownPods) {
		if e.heard == nil {
			e.heard = map[string][]netip.Addr{}
		}
		e.heard[s.Ref.UID] = there
	}
	e.mu.Unlock()
	if changed {
		e.changed()
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
func (e *exposure) addresses(pod sources) []netip.Addr {
	if !pod.said {
		return pod.home
	}
	var out []netip.Addr
	for _, a := range pod.there {
		a, ok := e.home(a)
		if ok && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// readied notes that every object that is wanted has been wanted.
func (e *exposure) readied() {
	e.mu.Lock()
	e.ready = true
	e.mu.Unlock()
	e.changed()
}

// learn takes over what this cluster's own objects say once all Services were looked
// at: the addresses of pods are in their statuses, also while the provider cannot be
// asked.
func (e *exposure) learn() {
	e.mu.Lock()
	due := e.ready && !e.known
	e.mu.Unlock()
	if !due {
		return
	}
	pods, complete := e.local()
	if !complete {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, addrs := range pods {
		pod, own := e.pods[ref.UID]
		heard, said := e.heard[ref.UID]
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
	e.known, e.heard = true, nil
}

// reachable is what peers may reach of this cluster: its pods, and hosts that are none.
type reachable struct {
	pods  []netip.Prefix
	hosts []allow.Host
	// thirds is the addresses of this cluster's pods in other peers that the peer may reach
	// through it, by these peers' IDs and by namespace.
	thirds map[string]map[string][]netip.Addr
}

// holds says whether a Service of a namespace may open a destination.
func (r reachable) holds(namespace string, d allow.Destination) bool {
	return slices.ContainsFunc(r.pods, func(p netip.Prefix) bool { return p.Contains(d.Addr) }) ||
		slices.ContainsFunc(r.hosts, func(h allow.Host) bool { return h.Opens(namespace, d) })
}

// exposed returns what is exposed, by namespace, of addresses that are this
// cluster's own, and whether that is all.
func (e *exposure) exposed(own reachable) (out []allow.Exposed, known bool) {
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
	out = e.passed(from, own.thirds)
	for namespace, open := range to {
		if len(from[namespace]) > 0 {
			out = append(out, allow.Exposed{Contract: e.contract, Namespace: namespace, From: from[namespace], To: open})
		}
	}
	return out, e.known
}

// passed returns what is exposed of this cluster's pods in third peers: endpoints of the Services that
// the provider was told of, and the addresses that the namespace's pods there come from. The lock is
// held.
func (e *exposure) passed(from map[string][]netip.Addr, thirds map[string]map[string][]netip.Addr) (out []allow.Exposed) {
	for third, pods := range thirds {
		for namespace, addrs := range pods {
			if len(from[namespace]) == 0 {
				continue
			}
			x := allow.Exposed{Contract: e.contract, Namespace: namespace, Third: third, From: from[namespace], Known: addrs}
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

// there returns the addresses of this cluster's pods in the provider, by namespace.
func (e *exposure) there() map[string][]netip.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]netip.Addr{}
	for _, pod := range e.pods {
		out[pod.namespace] = append(out[pod.namespace], e.addresses(pod)...)
	}
	return out
}

// startup says of which contracts it is not known yet, since this agent started,
// what they expose. The zero value begins when it is first asked.
type startup struct {
	mu    sync.Mutex
	since time.Time
	known map[string]bool
}

// unsure says whether what stands of a contract is to stay for now. Once all of it was
// known it never is again, nor after exposureGrace.
func (s *startup) unsure(contract string, known bool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since, s.known = now, map[string]bool{}
	}
	if now.Sub(s.since) >= exposureGrace {
		s.known = nil
		return false
	}
	if known {
		s.known[contract] = true
	}
	return !s.known[contract]
}

// exposed returns what a peer may reach: as a consumer the pods that it runs
// here, as a provider what our pods there need.
func (a *agent) exposed(ctx context.Context, peer peering.ClusterID) ([]allow.Exposed, error) {
	var own reachable
	var err error
	if own.pods, _, err = a.states.Prefixes(ctx); err != nil {
		return nil, err
	}
	if own.hosts, err = a.hosts.Accepted(ctx); err != nil {
		return nil, err
	}
	contracts, err := store.ContractsWith(ctx, a.mgr.GetClient(), peer, ctrlclient.UnsafeDisableDeepCopy) // they are only read
	if err != nil {
		return nil, err
	}
	own.thirds = map[string]map[string][]netip.Addr{}
	for _, third := range a.passesTo(ctx, peer) {
		own.thirds[third] = a.nodes.podsIn(peering.ClusterID(third))
	}
	var out []allow.Exposed
	if fc := a.addresses.peer(peer); fc != nil {
		out = allow.ExposedHosts(own.hosts, fc.Name)
	}
	for i := range contracts {
		c := &contracts[i]
		if !store.Unverified(c).Wants().Tunnel {
			continue
		}
		open, known := a.exposedBy(c, own)
		out = append(out, open...)
		exported, err := a.exposedServices(ctx, c, own)
		if err != nil {
			return nil, err
		}
		out = append(out, exported...)
		if a.startup.unsure(c.Name, known, time.Now()) {
			out = append(out, allow.Exposed{Contract: c.Name, Unknown: true})
		}
	}
	return out, nil
}

// passesTo returns the peers that another one reaches through this cluster.
func (a *agent) passesTo(ctx context.Context, peer peering.ClusterID) []string {
	var list v1alpha1.ForeignClusterList
	fc := a.addresses.peer(peer)
	if fc == nil || fc.Spec.Transit == nil || a.mgr.GetClient().List(ctx, &list, ctrlclient.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return transit.Agreed(fc, list.Items)
}

// exposureChanged has the tunnel to a peer written, and those to the peers that reach this
// cluster's pods there through it.
func (a *agent) exposureChanged(peer peering.ClusterID) {
	a.wakePeer(peer)
	for _, third := range a.passesTo(context.Background(), peer) { //nolint:forbidigo // a cache answers at once
		a.wakePeer(peering.ClusterID(third))
	}
}

// exposedBy returns what one contract exposes, as far as that is known, and whether
// that is all.
func (a *agent) exposedBy(c *v1alpha1.Contract, own reachable) ([]allow.Exposed, bool) {
	if c.Spec.Role != v1alpha1.ContractProvider {
		return a.nodes.exposed(c.Name, own)
	}
	pods, known := a.lent.Exposed(c.Name)
	open := allow.Exposed{Contract: c.Name, AnySource: true}
	for _, addr := range pods {
		open.To = append(open.To, allow.Destination{Addr: addr}) // they are the peer's own
	}
	return []allow.Exposed{open}, known
}
