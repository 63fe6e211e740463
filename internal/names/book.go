package names

import (
	"net/netip"
	"strings"
	"sync"
)

// Service is a Service of a consumer, as reflected in this cluster.
type Service struct {
	// Addresses are its cluster addresses. A headless one has none.
	Addresses []netip.Addr
	Headless  bool
	Ports     []Port
	// ExternalName is the name of which it is an alias. No other field is set then.
	ExternalName string
	// Set is its name in the consumer's cluster set. It has no other name then.
	Set string
}

// Port is a port of a Service or of its endpoints.
type Port struct {
	// Name is "" for a port without a name.
	Name string
	// Protocol is tcp, udp or sctp.
	Protocol string
	Number   uint16
}

// Endpoint is an endpoint of a Service that takes traffic.
type Endpoint struct {
	Address netip.Addr
	// Hostname is its name below the Service's. By default a Book derives it from the address.
	Hostname string
	// Cluster is its cluster, for a Service of a cluster set.
	Cluster string
	Ports   []Port
}

// Who is the source of a query.
type Who struct {
	// Peer is the consumer of the pod.
	Peer string
	// Domain is the domain of the consumer's cluster, such as cluster.local.
	Domain string
}

// Book has the names of all consumers, and the addresses of their pods. It is safe for concurrent
// use.
type Book struct {
	mu sync.RWMutex
	// spaces is by the name of a namespace here.
	spaces map[string]*space
	// homes is by consumer and by the name of a namespace at home.
	homes map[string]map[string]*space
	// reverse has the Services and endpoints by address.
	reverse map[netip.Addr]map[owner]struct{}
	// pods has the pods by address, podAddresses the addresses by pod.
	pods         map[netip.Addr]map[object]struct{}
	podAddresses map[object][]netip.Addr
	// more is closed and replaced when an address may have become that of a pod.
	more chan struct{}
}

// object is an object of a namespace here.
type object struct{ namespace, name string }

// owner is a Service, or, with a slice, the endpoints in one of its EndpointSlices.
type owner struct {
	namespace, service, slice string
}

// space is a namespace of a consumer. Its Services and endpoints may be known before the namespace
// is.
type space struct {
	// peer is "" until the namespace is known.
	peer, home, domain string
	services           map[string]Service
	// sets has the names here of Services of the consumer's cluster set, by their names in the set.
	sets   map[string]string
	slices map[string]slice
	// slicesOf has the EndpointSlices by Service.
	slicesOf map[string]map[string]struct{}
}

// slice is the content of an EndpointSlice.
type slice struct {
	service   string
	endpoints []Endpoint
}

// NewBook returns an empty Book.
func NewBook() *Book {
	return &Book{
		spaces: make(map[string]*space), homes: make(map[string]map[string]*space),
		reverse: make(map[netip.Addr]map[owner]struct{}),
		pods:    make(map[netip.Addr]map[object]struct{}), podAddresses: make(map[object][]netip.Addr),
		more: make(chan struct{}),
	}
}

// space returns the namespace of a name here, which it adds if necessary.
func (b *Book) space(name string) *space {
	s, ok := b.spaces[name]
	if !ok {
		s = &space{services: make(map[string]Service), sets: make(map[string]string), slices: make(map[string]slice), slicesOf: make(map[string]map[string]struct{})}
		b.spaces[name] = s
	}
	return s
}

// drop forgets a namespace if it has become empty.
func (b *Book) drop(name string) {
	if s := b.spaces[name]; s != nil && s.peer == "" && len(s.services) == 0 && len(s.slices) == 0 {
		delete(b.spaces, name)
	}
}

// SetNamespace records the consumer of a namespace here, its name at home, and the domain of that
// cluster.
func (b *Book) SetNamespace(name, peer, home, domain string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.space(name)
	b.unlink(s)
	s.peer, s.home, s.domain = peer, home, domain
	if b.homes[peer] == nil {
		b.homes[peer] = make(map[string]*space)
	}
	b.homes[peer][home] = s
	b.announce()
}

// DeleteNamespace records that a namespace here is not a consumer's.
func (b *Book) DeleteNamespace(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.spaces[name]; s != nil {
		b.unlink(s)
		s.peer, s.home, s.domain = "", "", ""
		b.drop(name)
	}
}

// unlink removes a namespace from those of its consumer.
func (b *Book) unlink(s *space) {
	if b.homes[s.peer][s.home] != s {
		return
	}
	delete(b.homes[s.peer], s.home)
	if len(b.homes[s.peer]) == 0 {
		delete(b.homes, s.peer)
	}
}

// SetService records a Service.
func (b *Book) SetService(namespace, name string, s Service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.space(namespace)
	o := owner{namespace: namespace, service: name}
	b.unindex(o, in.services[name].Addresses)
	in.dropSet(name)
	in.services[name] = s
	if s.Set != "" {
		in.sets[s.Set] = name
	}
	b.index(o, s.Addresses)
}

// dropSet forgets the name of a Service in a cluster set, unless another Service has it by now.
func (s *space) dropSet(name string) {
	if set := s.services[name].Set; s.sets[set] == name {
		delete(s.sets, set)
	}
}

// DeleteService records that a Service does not exist.
func (b *Book) DeleteService(namespace, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.spaces[namespace]
	if in == nil {
		return
	}
	b.unindex(owner{namespace: namespace, service: name}, in.services[name].Addresses)
	in.dropSet(name)
	delete(in.services, name)
	b.drop(namespace)
}

// SetSlice records the endpoints in one EndpointSlice of a Service that take traffic. The Book owns
// the list from then on.
func (b *Book) SetSlice(namespace, name, service string, endpoints []Endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deleteSlice(namespace, name)
	in := b.space(namespace)
	for i := range endpoints {
		if e := &endpoints[i]; e.Hostname == "" {
			e.Hostname = strings.NewReplacer(".", "-", ":", "-").Replace(e.Address.String())
		}
	}
	in.slices[name] = slice{service: service, endpoints: endpoints}
	if in.slicesOf[service] == nil {
		in.slicesOf[service] = make(map[string]struct{})
	}
	in.slicesOf[service][name] = struct{}{}
	b.index(owner{namespace, service, name}, addresses(endpoints))
}

// DeleteSlice records that an EndpointSlice does not exist.
func (b *Book) DeleteSlice(namespace, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deleteSlice(namespace, name)
	b.drop(namespace)
}

func (b *Book) deleteSlice(namespace, name string) {
	in := b.spaces[namespace]
	if in == nil {
		return
	}
	was, ok := in.slices[name]
	if !ok {
		return
	}
	b.unindex(owner{namespace, was.service, name}, addresses(was.endpoints))
	delete(in.slices, name)
	delete(in.slicesOf[was.service], name)
	if len(in.slicesOf[was.service]) == 0 {
		delete(in.slicesOf, was.service)
	}
}

func addresses(endpoints []Endpoint) []netip.Addr {
	out := make([]netip.Addr, 0, len(endpoints))
	for _, e := range endpoints {
		out = append(out, e.Address)
	}
	return out
}

func (b *Book) index(o owner, list []netip.Addr) {
	for _, a := range list {
		if b.reverse[a] == nil {
			b.reverse[a] = make(map[owner]struct{})
		}
		b.reverse[a][o] = struct{}{}
	}
}

func (b *Book) unindex(o owner, list []netip.Addr) {
	for _, a := range list {
		delete(b.reverse[a], o)
		if len(b.reverse[a]) == 0 {
			delete(b.reverse, a)
		}
	}
}

// SetPod records the addresses of a pod; one that has ended has none.
func (b *Book) SetPod(namespace, name string, list []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pod := object{namespace, name}
	for _, a := range b.podAddresses[pod] {
		delete(b.pods[a], pod)
		if len(b.pods[a]) == 0 {
			delete(b.pods, a)
		}
	}
	if len(list) == 0 {
		delete(b.podAddresses, pod)
	} else {
		b.podAddresses[pod] = list
	}
	for _, a := range list {
		if b.pods[a] == nil {
			b.pods[a] = make(map[object]struct{})
		}
		b.pods[a][pod] = struct{}{}
	}
	// If it lost an address, the address may belong to one other pod alone now.
	b.announce()
}

// announce wakes the callers of await.
func (b *Book) announce() {
	close(b.more)
	b.more = make(chan struct{})
}

// Source returns the consumer whose pod has an address. It returns none while pods of several
// consumers seem to have it, as when an address was just assigned to another pod.
func (b *Book) Source(a netip.Addr) (Who, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.source(a)
}

func (b *Book) source(a netip.Addr) (who Who, ok bool) {
	for pod := range b.pods[a] {
		s := b.spaces[pod.namespace]
		if s == nil || s.peer == "" {
			return Who{}, false
		}
		this := Who{Peer: s.peer, Domain: s.domain}
		if ok && who != this {
			return Who{}, false
		}
		who, ok = this, true
	}
	return who, ok
}

// await returns the results of Source, and a channel that is closed when they may have changed.
func (b *Book) await(a netip.Addr) (Who, bool, <-chan struct{}) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	who, ok := b.source(a)
	return who, ok, b.more
}
