package puppet

import (
	"sync/atomic"
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Pods accepts all objects, and reports the given status of pods. Deleted ones are gone at once.
type Pods struct {
	ententev1.UnimplementedOffloadServiceServer
	// Status and Event are what is said of a pod the nth time, from 0. No Event says
	// none.
	Status func(pod peering.ObjectRef, n int) peering.PodStatus
	Event  func(pod peering.ObjectRef, n int) peering.PodEvent
	// Flood has it say so again and again, as fast as it is read.
	Flood atomic.Bool
	// Said counts what it said of pods.
	Said atomic.Int64
}

// floodPoll is how often Flood is looked at.
const floodPoll = 50 * time.Millisecond

// Sync implements the OffloadService.
func (p *Pods) Sync(stream ententev1.OffloadService_SyncServer) error {
	in, ended := make(chan *ententev1.SyncRequest), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case in <- m:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	said := map[peering.ObjectRef]int{}
	say := func(pod peering.ObjectRef) error {
		n := said[pod]
		said[pod]++
		p.Said.Add(1)
		if err := stream.Send(wire.PodStatusTo(p.Status(pod, n))); err != nil || p.Event == nil {
			return err
		}
		return stream.Send(wire.PodEventTo(p.Event(pod, n)))
	}
	for {
		var again <-chan time.Time
		switch {
		case len(said) == 0:
		case p.Flood.Load():
			again = time.After(0)
		default:
			again = time.After(floodPoll) // it may begin once all pods are there
		}
		select {
		case err := <-ended:
			return err
		case m := <-in:
			if err := p.take(stream, m, said, say); err != nil {
				return err
			}
		case <-again:
			if !p.Flood.Load() {
				continue
			}
			for pod := range said {
				if err := say(pod); err != nil {
					return err
				}
			}
		}
	}
}

func (p *Pods) take(stream ententev1.OffloadService_SyncServer, m *ententev1.SyncRequest, said map[peering.ObjectRef]int, say func(peering.ObjectRef) error) error {
	switch x := m.GetMessage().(type) {
	case *ententev1.SyncRequest_Open_:
		return stream.Send(wire.SyncedTo())
	case *ententev1.SyncRequest_Apply_:
		o, err := wire.ApplyFrom(x.Apply)
		if err != nil {
			return err
		}
		if err := stream.Send(wire.AckTo(peering.Ack{Ref: o.Ref, Hash: o.Hash()})); err != nil || o.Ref.Kind != peering.KindPod {
			return err
		}
		return say(o.Ref)
	case *ententev1.SyncRequest_Delete_:
		ref, _, err := wire.DeleteFrom(x.Delete)
		if err != nil {
			return err
		}
		if err := stream.Send(wire.AckTo(peering.Ack{Ref: ref})); err != nil || ref.Kind != peering.KindPod {
			return err
		}
		delete(said, ref)
		return stream.Send(wire.PodStatusTo(peering.PodStatus{Ref: ref, Gone: true}))
	}
	return nil
}
