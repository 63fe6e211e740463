package reflection

import (
	"encoding/json"
	"math"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// Opening is a port that a Service opens of a pod, which is known by its UID at home.
type Opening struct {
	PodUID   string
	Protocol corev1.Protocol
	Port     int32
}

// Openings remembers what reflected Services open of pods: a note is decoded once for each version of its Service. The
// zero value remembers nothing yet.
type Openings struct {
	mu       sync.Mutex
	services map[types.UID]openings
}

// openings is what a version of a Service opens.
type openings struct {
	version string
	open    []Opening
}

// Of returns what a Service opens; callers only read it. note returns the note on the Service, unless it must not be
// used. Such a Service opens nothing, and its note is read again at the next call.
func (o *Openings) Of(svc *corev1.Service, note func() ([]byte, bool)) []Opening {
	o.mu.Lock()
	known, ok := o.services[svc.UID]
	o.mu.Unlock()
	if ok && known.version == svc.ResourceVersion {
		return known.open
	}
	b, ok := note()
	if !ok {
		return nil
	}
	now := openings{version: svc.ResourceVersion, open: opened(b)}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.services == nil || len(o.services) >= maxOpenings {
		o.services = make(map[types.UID]openings)
	}
	o.services[svc.UID] = now
	return now.open
}

// Forget forgets a Service that is gone.
func (o *Openings) Forget(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.services, uid)
}

// opened decodes what a note opens of pods.
func opened(note []byte) (out []Opening) {
	var in peering.ServiceObject
	if json.Unmarshal(note, &in) != nil {
		return nil
	}
	for _, e := range in.Endpoints {
		for _, port := range in.Ports {
			if number, ok := e.Ports[port.Name]; ok && e.PodUID != "" && number > 0 && number <= math.MaxUint16 {
				out = append(out, Opening{PodUID: e.PodUID, Protocol: endpoints.Protocol(port.Protocol), Port: number})
			}
		}
	}
	return out
}
