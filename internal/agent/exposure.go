package agent

import (
	"encoding/json"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/peering"
)

// exposure is what a provider may reach here because of one contract: the pods
// behind the services that it was told of, from the pods that it runs for us. It
// is read off what crosses, so it can be neither more nor less than that.
type exposure struct {
	// changed is called when it may have changed.
	changed func()

	mu       sync.Mutex
	services map[peering.ObjectRef][]netip.Addr
	pods     map[string][]netip.Addr // by UID, in home terms
}

// want notes what a service's endpoints are.
func (e *exposure) want(o peering.Object) {
	if o.Ref.Kind != peering.KindService {
		return
	}
	var service peering.ServiceObject
	if err := json.Unmarshal(o.JSON, &service); err != nil {
		return // what cannot be read exposes nothing
	}
	addrs := make([]netip.Addr, 0, len(service.Endpoints))
	for _, endpoint := range service.Endpoints {
		if a, err := netip.ParseAddr(endpoint.Address); err == nil {
			addrs = append(addrs, a)
		}
	}
	e.mu.Lock()
	if e.services == nil {
		e.services = map[peering.ObjectRef][]netip.Addr{}
	}
	e.services[o.Ref] = addrs
	e.mu.Unlock()
	e.changed()
}

func (e *exposure) unwant(ref peering.ObjectRef) {
	e.mu.Lock()
	delete(e.services, ref)
	delete(e.pods, ref.UID)
	e.mu.Unlock()
	e.changed()
}

// status notes a pod's addresses, translated by home.
func (e *exposure) status(s peering.PodStatus, home func(netip.Addr) (netip.Addr, bool)) {
	var status corev1.PodStatus
	var addrs []netip.Addr
	if !s.Gone && json.Unmarshal(s.Status, &status) == nil {
		for _, ip := range status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				if a, ok := home(a); ok {
					addrs = append(addrs, a)
				}
			}
		}
	}
	e.mu.Lock()
	if e.pods == nil {
		e.pods = map[string][]netip.Addr{}
	}
	before := len(e.pods[s.Ref.UID])
	if len(addrs) == 0 {
		delete(e.pods, s.Ref.UID)
	} else {
		e.pods[s.Ref.UID] = addrs
	}
	e.mu.Unlock()
	if before != len(addrs) {
		e.changed()
	}
}

// exposed returns what is exposed, of addresses that are this cluster's own.
func (e *exposure) exposed(own []netip.Prefix) controller.Exposed {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := controller.Exposed{From: []netip.Addr{}, To: []netip.Addr{}}
	for _, addrs := range e.pods {
		out.From = append(out.From, addrs...)
	}
	for _, addrs := range e.services {
		for _, a := range addrs {
			for _, p := range own {
				if p.Contains(a) {
					out.To = append(out.To, a)
					break
				}
			}
		}
	}
	return out
}
