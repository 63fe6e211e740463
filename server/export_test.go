package server

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/servertest"
)

var bankDB = peering.ServiceName{Namespace: "bank", Name: "db"}

func exportedDB(addresses ...string) peering.ExportedService {
	s := peering.ExportedService{ServiceName: bankDB, Service: peering.ServiceObject{SessionAffinity: "None", Ports: []peering.ServicePort{{Name: "sql", Protocol: "TCP", Port: 5432}}}}
	for _, a := range addresses {
		s.Service.Endpoints = append(s.Service.Endpoints, peering.ServiceEndpoint{Address: a, Ready: true, Serving: true, Ports: map[string]int32{"sql": 5432}})
	}
	return s
}

// A Service that changes ten times a second is told five times, as it is then, and a
// contract that ends is noticed though nothing changes.
func TestExportsAreToldAtAPaceAndEndWithTheContract(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, changed := exportedDB("10.1.0.1"), make(chan struct{})
		closed := peering.Errorf(peering.ReasonContractClosed, "it ended")
		var end error
		var mu sync.Mutex
		locked := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		reader, messages, heard := wire.NewExports([]peering.ServiceName{bankDB}), 0, peering.ExportedService{}
		done := make(chan error)
		go func() {
			done <- sendExports(t.Context(), func(context.Context) ([]peering.ExportedService, <-chan struct{}, error) {
				mu.Lock()
				defer mu.Unlock()
				return []peering.ExportedService{now}, changed, end
			}, func(m *ententev1.WatchServicesResponse) error {
				mu.Lock()
				defer mu.Unlock()
				messages++
				s, _, err := reader.Read(m)
				heard = s
				return err
			})
		}()
		synctest.Wait()
		for i := range 10 {
			time.Sleep(100 * time.Millisecond)
			locked(func() {
				now = exportedDB("10.1.0.1", "10.1.1."+string(rune('0'+i)))
				close(changed)
				changed = make(chan struct{})
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		locked(func() {
			if messages < 3 || messages > 7 || len(heard.Service.Endpoints) != 2 || heard.Service.Endpoints[1].Address != "10.1.1.9" {
				t.Errorf("%d messages, of which the last says %+v", messages, heard)
			}
			end = closed
		})
		begin := time.Now()
		if err := <-done; peering.ReasonOf(err) != peering.ReasonContractClosed || time.Since(begin) > ExportCheck {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

// exportsBy has a contract for one peer.
type exportsBy struct {
	peer     peering.ClusterID
	contract string
}

func (e exportsBy) Exported(_ context.Context, peer peering.ClusterID, contract string, names []peering.ServiceName) ([]peering.ExportedService, <-chan struct{}, error) {
	if peer != e.peer || contract != e.contract {
		return nil, nil, peering.Errorf(peering.ReasonContractUnknown, "there is no such contract")
	}
	var out []peering.ExportedService
	for _, n := range names {
		if n == bankDB {
			out = append(out, exportedDB("10.1.0.1"))
		} else {
			out = append(out, peering.ExportedService{ServiceName: n, Refusal: "no"})
		}
	}
	return out, nil, nil
}

func TestWhoIsToldOfExportedServices(t *testing.T) {
	exports := &exportsBy{contract: "c-1"}
	p := newPeerTest(t, func(c *PeerConfig) { c.Exports = exports })
	other, stranger := servertest.NewSource(t), servertest.NewSource(t)
	p.trustCaller(t)
	exports.peer = p.caller.ID()
	if err := p.bundles.Trust(other.ID(), other.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
	names := wire.ServiceNamesTo([]peering.ServiceName{bankDB, {Namespace: "kube-system", Name: "dns"}})
	ask := func(as *identity.Source, contract string, names []*ententev1.ServiceName) (grpc.ServerStreamingClient[ententev1.WatchServicesResponse], *ententev1.WatchServicesResponse, error) {
		stream, err := ententev1.NewExportServiceClient(p.dial(t, as)).WatchServices(t.Context(), &ententev1.WatchServicesRequest{ContractId: contract, Services: names})
		if err != nil {
			return nil, nil, err
		}
		m, err := stream.Recv()
		return stream, m, err
	}
	stream, m, err := ask(p.caller, "c-1", names)
	if err != nil || len(m.GetSet()) != 1 || !m.GetComplete() {
		t.Fatalf("told %v, %v", m, err)
	}
	if m, err = stream.Recv(); err != nil || m.GetRefusal() != "no" || m.GetState() != nil || len(m.GetSet()) > 0 {
		t.Errorf("of what is not exported it is told %v, %v", m, err)
	}
	for what, test := range map[string]struct {
		as       *identity.Source
		contract string
		names    []*ententev1.ServiceName
		want     peering.Reason
	}{
		"a stranger":          {stranger, "c-1", names, peering.ReasonPeerNotTrusted},
		"another's contract":  {other, "c-1", names, peering.ReasonContractUnknown},
		"no such contract":    {p.caller, "c-2", names, peering.ReasonContractUnknown},
		"no names":            {p.caller, "c-1", nil, peering.ReasonRequestInvalid},
		"a name that is none": {p.caller, "c-1", []*ententev1.ServiceName{{Namespace: "bank", Name: "../db"}}, peering.ReasonRequestInvalid},
		"one name twice":      {p.caller, "c-1", append(names, names[0]), peering.ReasonRequestInvalid},
	} {
		if _, m, err := ask(test.as, test.contract, test.names); wire.ReasonOf(err) != test.want {
			t.Errorf("%s: told %v, %v, want %s", what, m, err, test.want)
		}
	}
}
