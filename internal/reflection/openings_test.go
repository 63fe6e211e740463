package reflection

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

// reflected is so many Services, each with 20 endpoints of pods, and the number of times that a note was read.
func reflected(t testing.TB, n int) (services []*corev1.Service, pass func(*Openings) int, reads *int) {
	t.Helper()
	in := peering.ServiceObject{Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}
	for i := range 20 {
		in.Endpoints = append(in.Endpoints, peering.ServiceEndpoint{Address: "10.1.0.9", Ready: true, PodUID: fmt.Sprint("pod-", i), Ports: map[string]int32{"http": 8080}})
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		svc, _, err := ReadService(named(fmt.Sprint("web-", i), b))
		if err != nil {
			t.Fatal(err)
		}
		svc.UID, svc.ResourceVersion = types.UID(fmt.Sprint("u-", i)), "1"
		services = append(services, svc)
	}
	reads = new(int)
	return services, func(o *Openings) (open int) {
		for _, svc := range services {
			open += len(o.Of(svc, func() ([]byte, bool) {
				*reads++
				note, err := Unpack(svc.Annotations[NoteService])
				return note, err == nil
			}))
		}
		return open
	}, reads
}

func TestAnUnchangedServiceIsDecodedOnce(t *testing.T) {
	const n = 1000
	services, pass, reads := reflected(t, n)
	o := &Openings{}
	if open := pass(o); open != 20*n || *reads != n {
		t.Fatalf("the first pass finds %d ports and decodes %d Services", open, *reads)
	}
	open := 0
	allocs := testing.AllocsPerRun(3, func() { open = pass(o) })
	if open != 20*n || *reads != n || allocs > 2*n {
		t.Errorf("later passes find %d ports, decode %d Services and allocate %.0f times", open, *reads-n, allocs)
	}
	services[7].ResourceVersion = "2"
	o.Forget(services[8].UID)
	if pass(o); *reads != n+2 {
		t.Errorf("after a change of one Service and the deletion of another %d are decoded again, want 2", *reads-n)
	}
}

func BenchmarkOpeningsOfUnchangedServices(b *testing.B) {
	_, pass, _ := reflected(b, 1000)
	o := &Openings{}
	pass(o)
	b.ReportAllocs()
	for b.Loop() {
		pass(o)
	}
}

// What must not be used is checked each time, so that it is used as soon as it may be.
func TestANoteThatMustNotBeUsedIsNotRemembered(t *testing.T) {
	services, _, _ := reflected(t, 1)
	o, may := &Openings{}, false
	read := func() []Opening {
		return o.Of(services[0], func() ([]byte, bool) {
			return []byte(`{"ports":[{"name":"http","protocol":"UDP","port":80}],"endpoints":[{"podUID":"a","ports":{"http":53}},{"podUID":"b","ports":{"http":70000}},{"ports":{"http":53}}]}`), may
		})
	}
	if got := read(); got != nil {
		t.Errorf("it opens %v", got)
	}
	may = true
	if diff := cmp.Diff([]Opening{{PodUID: "a", Protocol: corev1.ProtocolUDP, Port: 53}}, read()); diff != "" {
		t.Errorf("it opens (-want +got):\n%s", diff)
	}
}

func TestRememberedServicesAreBounded(t *testing.T) {
	o := &Openings{}
	for i := range 2*maxOpenings + 1 {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}}
		o.Of(svc, func() ([]byte, bool) { return []byte("{}"), true })
		if len(o.services) > maxOpenings {
			t.Fatalf("%d Services are remembered", len(o.services))
		}
	}
}
