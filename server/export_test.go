package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

var bankDB = peering.ServiceName{Namespace: "bank", Name: "db"}

func exportedDB(addresses ...string) peering.ExportedService {
	s := peering.ExportedService{ServiceName: bankDB, Service: peering.ServiceObject{SessionAffinity: "None", Ports: []peering.ServicePort{{Name: "sql", Protocol: "TCP", Port: 5432}}}}
	for _, a := range addresses {
		s.Service.Endpoints = append(s.Service.Endpoints, peering.ServiceEndpoint{Address: a, Ready: true, Serving: true, Ports: map[string]int32{"sql": 5432}})
	}
	return s
}

// A Service that changes ten times a second is sent five times, each time in its current state,
// and the end of a contract is noticed though nothing changes.
func TestExportsAreSentAtAPaceAndEndWithTheContract(t *testing.T) {
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
		reader, messages, received := wire.NewExports([]peering.ServiceName{bankDB}), 0, peering.ExportedService{}
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
				received = s
				return err
			}, func() error { return nil })
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
			if messages < 3 || messages > 7 || len(received.Service.Endpoints) != 2 || received.Service.Endpoints[1].Address != "10.1.1.9" {
				t.Errorf("%d messages, the last one %+v", messages, received)
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

func (e exportsBy) InSet(_ context.Context, peer peering.ClusterID, contract string) ([]peering.ExportedService, <-chan struct{}, error) {
	if peer != e.peer || contract != e.contract {
		return nil, nil, peering.Errorf(peering.ReasonContractUnknown, "there is no such contract")
	}
	out := exportedDB("10.1.0.1")
	out.Export = &peering.ServiceExport{Created: time.Unix(1, 0).UTC()}
	return []peering.ExportedService{out}, nil, nil
}

// The Services exported to a cluster set are sent once, followed by the end of the list; one that
// leaves the set is refused.
func TestAClusterSetIsSentWholeAndThenAsItChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, changed := []peering.ExportedService{exportedDB("10.1.0.1"), exportedDB("10.1.0.2")}, make(chan struct{})
		now[1].Name = "web"
		for i := range now {
			now[i].Export = &peering.ServiceExport{Created: time.Unix(1, 0).UTC()}
		}
		reader, rounds := wire.NewClusterSet(), 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- sendExports(ctx, func(context.Context) ([]peering.ExportedService, <-chan struct{}, error) {
				mu.Lock()
				defer mu.Unlock()
				return now, changed, nil
			}, func(m *ententev1.WatchServicesResponse) error {
				mu.Lock()
				defer mu.Unlock()
				_, _, err := reader.Read(m)
				return err
			}, func() error { rounds++; return nil })
		}()
		for _, want := range []int{2, 1, 0, 2} {
			mu.Lock()
			all := []peering.ExportedService{exportedDB("10.1.0.1"), exportedDB("10.1.0.2")}
			all[1].Name = "web"
			for i := range all {
				all[i].Export = &peering.ServiceExport{Created: time.Unix(1, 0).UTC()}
			}
			now = all[:want]
			close(changed)
			changed = make(chan struct{})
			mu.Unlock()
			time.Sleep(time.Second)
			synctest.Wait()
			mu.Lock()
			if names := reader.Names(); len(names) != want || rounds == 0 {
				t.Errorf("%d exported are sent as %v, after %d rounds", want, names, rounds)
			}
			mu.Unlock()
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestExportedServicesGoToPartiesOfTheContractOnly(t *testing.T) {
	exports := &exportsBy{contract: "c-1"}
	p := newPeerTest(t, func(c *PeerConfig) { c.Exports = exports })
	other, stranger := identitytest.NewSource(t), identitytest.NewSource(t)
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
	if err != nil || len(m.GetUpdatedEndpoints()) != 1 || !m.GetComplete() {
		t.Fatalf("received %v, %v", m, err)
	}
	if m, err = stream.Recv(); err != nil || m.GetRefusal() != "no" || m.GetState() != nil || len(m.GetUpdatedEndpoints()) > 0 {
		t.Errorf("of what is not exported it receives %v, %v", m, err)
	}
	for what, test := range map[string]struct {
		as   *identity.Source
		want peering.Reason
	}{"a stranger": {stranger, peering.ReasonPeerNotTrusted}, "another's contract": {other, peering.ReasonContractUnknown}} {
		stream, err := ententev1.NewExportServiceClient(p.dial(t, test.as)).WatchClusterSet(t.Context(), &ententev1.WatchClusterSetRequest{ContractId: "c-1"})
		if err == nil {
			_, err = stream.Recv()
		}
		if wire.ReasonOf(err) != test.want {
			t.Errorf("of the cluster set %s: %v, want %s", what, err, test.want)
		}
	}
	set, err := ententev1.NewExportServiceClient(p.dial(t, p.caller)).WatchClusterSet(t.Context(), &ententev1.WatchClusterSetRequest{ContractId: "c-1"})
	if err != nil {
		t.Fatal(err)
	}
	first, err := set.Recv()
	second, errs := set.Recv()
	if err != nil || errs != nil || first.GetChange().GetState().GetExport() == nil || !second.GetSynced() {
		t.Errorf("of the cluster set it receives %v and %v, %v", first, second, errors.Join(err, errs))
	}
	for what, test := range map[string]struct {
		as       *identity.Source
		contract string
		names    []*ententev1.ServiceName
		want     peering.Reason
	}{
		"a stranger":         {stranger, "c-1", names, peering.ReasonPeerNotTrusted},
		"another's contract": {other, "c-1", names, peering.ReasonContractUnknown},
		"no such contract":   {p.caller, "c-2", names, peering.ReasonContractUnknown},
		"no names":           {p.caller, "c-1", nil, peering.ReasonRequestInvalid},
		"a malformed name":   {p.caller, "c-1", []*ententev1.ServiceName{{Namespace: "bank", Name: "../db"}}, peering.ReasonRequestInvalid},
		"one name twice":     {p.caller, "c-1", append(names, names[0]), peering.ReasonRequestInvalid},
	} {
		if _, m, err := ask(test.as, test.contract, test.names); wire.ReasonOf(err) != test.want {
			t.Errorf("%s: received %v, %v, want %s", what, m, err, test.want)
		}
	}
}
