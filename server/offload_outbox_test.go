package server

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// stuck is a stream whose reader does not read.
type stuck struct {
	ententev1.OffloadService_SyncServer
	ctx context.Context
}

func (s stuck) Send(*ententev1.SyncResponse) error {
	<-s.ctx.Done()
	return context.Cause(s.ctx)
}

func TestASlowReaderIsCutOffNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		o := newOutbox()
		go o.send(ctx, cancel, stuck{ctx: ctx})
		began := time.Now()
		if err := o.put(ctx, wire.SyncedTo()); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if wire.ReasonOf(context.Cause(ctx)) != peering.ReasonTooManyCalls || time.Since(began) != offloadSendTimeout {
			t.Fatalf("cut off after %s with %v", time.Since(began), context.Cause(ctx))
		}
	})
}

func TestAnIdleStreamIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		o := newOutbox()
		go o.send(ctx, cancel, stuck{ctx: ctx})
		time.Sleep(10 * offloadSendTimeout)
		if ctx.Err() != nil {
			t.Fatalf("cut off with %v", context.Cause(ctx))
		}
	})
}

func TestMessagesForASlowReaderAreBounded(t *testing.T) {
	o := newOutbox()
	for i := range 100_000 {
		ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: fmt.Sprint("p", i%10), UID: fmt.Sprint("u", i%10)}
		o.status(peering.PodStatus{Ref: ref, RemoteUID: fmt.Sprint(i)})
		o.event(peering.PodEvent{Ref: ref, Message: fmt.Sprint(i)})
	}
	if len(o.statuses) != 10 || len(o.order) != 10 || len(o.events) != offloadMaxEvents {
		t.Fatalf("%d statuses, %d in order, %d events", len(o.statuses), len(o.order), len(o.events))
	}
	var statuses, events int
	for m := o.next(); m != nil; m = o.next() {
		switch {
		case m.GetStatus() != nil:
			statuses++
			if m.GetStatus().GetRemoteUid() < "99990" {
				t.Errorf("an old status %s", m.GetStatus().GetRemoteUid())
			}
		case m.GetEvent() != nil:
			events++
		}
	}
	if statuses != 10 || events != offloadMaxEvents {
		t.Fatalf("%d statuses and %d events came", statuses, events)
	}
}

// An empty status of a pod that is gone must not replace the one that says how it ended, by which
// home decides whether to run another.
func TestALastStatusIsSentThoughThePodWentMeanwhile(t *testing.T) {
	o := newOutbox()
	ref := func(i int) peering.ObjectRef {
		return peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "p", UID: fmt.Sprint(i)}
	}
	last := peering.PodStatus{Ref: ref(0), RemoteName: "shop-a/p", RemoteUID: "r", Status: []byte(`{"phase":"Succeeded"}`)}
	o.status(last)
	o.status(peering.PodStatus{Ref: ref(0), Gone: true})
	last.Gone = true
	if diff := cmp.Diff(wire.PodStatusTo(last), o.next(), protocmp.Transform()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	// A reader that is slow does not make the agent keep the statuses of all pods that ever were.
	const pods = 100
	for i := range pods {
		o.status(peering.PodStatus{Ref: ref(i), Status: make([]byte, offloadMaxLastBytes/10)})
		o.status(peering.PodStatus{Ref: ref(i), Gone: true})
		o.status(peering.PodStatus{Ref: ref(i), Gone: true})
	}
	gone, bytes := 0, 0
	for m := o.next(); m != nil; m = o.next() {
		if m.GetStatus().GetGone() {
			gone++
		}
		bytes += len(m.GetStatus().GetStatus())
	}
	if gone != pods || bytes > offloadMaxLastBytes || bytes < offloadMaxLastBytes/2 || o.lastBytes != 0 {
		t.Errorf("%d pods are reported as gone, with %d bytes; %d bytes wait", gone, bytes, o.lastBytes)
	}
}
