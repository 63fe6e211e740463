package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Sync implements the OffloadService.
func (s *Offload) Sync(stream ententev1.OffloadService_SyncServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	// Only the end of this function interrupts Recv and Send. So they have goroutines of their
	// own, which end right after it.
	in := make(chan *ententev1.SyncRequest)
	go func() {
		for {
			msg, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				cancel(errSyncDone)
				return
			}
			if err != nil {
				cancel(wire.FromStatus(err))
				return
			}
			select {
			case in <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	contract, err := awaitOpen(ctx, in)
	if err != nil {
		return syncEnd(err)
	}
	peer, err := s.authorize(ctx, contract)
	if err != nil {
		return err
	}
	release, err := s.supersede(ctx, contract, cancel)
	if err != nil {
		return syncEnd(err)
	}
	defer release()
	shared, leave := s.share(peer)
	defer leave()
	run := &syncRun{
		Offload: s, peer: peer, contract: contract, in: in,
		out:   newOutbox(),
		bytes: semaphore.NewWeighted(offloadMaxInFlightBytes),
		count: semaphore.NewWeighted(offloadMaxInFlight),
		lanes: make(map[string]*lane), shared: shared,
		bases: &bases{room: []*room{shared.remembered, s.remembered}},
	}
	defer run.bases.end()
	go run.out.send(ctx, cancel, stream)
	cancel(run.serve(ctx))
	run.work.Wait()
	return syncEnd(context.Cause(ctx))
}

// errSyncDone is the cause when the consumer ended the stream itself.
var errSyncDone = errors.New("the consumer ended the stream")

func syncEnd(err error) error {
	if errors.Is(err, errSyncDone) {
		return nil
	}
	return err
}

func awaitOpen(ctx context.Context, in <-chan *ententev1.SyncRequest) (string, error) {
	limit := time.NewTimer(offloadOpenTimeout)
	defer limit.Stop()
	select {
	case msg := <-in:
		open := msg.GetOpen()
		if open == nil {
			return "", peering.Errorf(peering.ReasonRequestInvalid, "the first message of a sync stream is open")
		}
		return wire.ContractIDFrom(open.GetContractId())
	case <-limit.C:
		return "", peering.Errorf(peering.ReasonRequestInvalid, "the stream did not say within %s which contract it is for", offloadOpenTimeout)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// syncRun is one Sync stream that was admitted.
type syncRun struct {
	*Offload
	peer     peering.ClusterID
	contract string
	in       <-chan *ententev1.SyncRequest
	out      *outbox

	bytes, count *semaphore.Weighted
	shared       *peerWork
	bases        *bases
	// lanes has the work of each namespace that has any.
	lanesMu sync.Mutex
	lanes   map[string]*lane
	work    sync.WaitGroup
}

// lane is the tasks of one namespace, in the order in which they came. A task is removed
// when it is done.
type lane struct {
	tasks []*syncTask
}

type syncTask struct {
	ref    peering.ObjectRef
	hash   peering.Hash
	size   int64
	delete bool
	begun  bool
	do     func(context.Context) error
	// remember: the consumer may send changes of the object. applied is the object, once it is known.
	remember bool
	applied  []byte
}

// due returns the tasks that can begin, and marks them begun. Tasks of one name run one
// after the other. Objects that pods may need are applied in order, one at a time; then pods
// are applied concurrently. A delete waits only for earlier tasks of its name.
func (l *lane) due() []*syncTask {
	type name struct {
		kind peering.Kind
		name string
	}
	var out []*syncTask
	earlier, needed := map[name]bool{}, false
	for _, t := range l.tasks {
		n := name{t.ref.Kind, t.ref.Name}
		if !t.begun && !earlier[n] && (t.delete || !needed) {
			t.begun = true
			out = append(out, t)
		}
		earlier[n] = true
		needed = needed || !t.delete && t.ref.Kind != peering.KindPod
	}
	return out
}

// serve sends what exists, and then carries out the consumer's messages until ctx ends or
// the stream fails.
func (r *syncRun) serve(ctx context.Context) error {
	held, err := r.cfg.Objects.Held(ctx, r.contract)
	if err != nil {
		return &peering.Error{
			Reason: peering.ReasonKubernetes, Message: "the provider could not list the objects of the contract; try again",
			RetryAfter: time.Second, Err: err,
		}
	}
	for _, h := range held {
		if err := r.out.put(ctx, wire.HeldTo(h)); err != nil {
			return err
		}
	}
	if err := r.out.put(ctx, wire.SyncedTo()); err != nil {
		return err
	}
	over := make(chan error, 1)
	r.work.Go(func() { over <- r.watch(ctx) })
	recheck := time.NewTicker(offloadRecheck)
	defer recheck.Stop()
	ask := time.NewTicker(fenceAskEvery)
	defer ask.Stop()
	if err := r.ask(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-over:
			return err
		case <-ask.C:
			if err := r.ask(ctx); err != nil {
				return err
			}
		case <-recheck.C:
			if err := r.open(r.peer, r.contract); err != nil {
				return err
			}
		case msg := <-r.in:
			if err := r.take(ctx, msg); err != nil {
				return err
			}
		}
	}
}

// ask asks the consumer whether it is there, if the contract has a fence.
func (r *syncRun) ask(ctx context.Context) error {
	if r.cfg.Fences == nil {
		return nil
	}
	if number, ok := r.cfg.Fences.Ask(r.contract); ok {
		return r.out.put(ctx, wire.PingTo(number))
	}
	return nil
}

// watch sends statuses and events until the stream is to end, and restarts a watch that failed.
func (r *syncRun) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.cfg.Objects.Watch(ctx, r.contract, r.out.status, r.out.event)
		if ctx.Err() != nil {
			break
		}
		if e := (*peering.Error)(nil); errors.As(err, &e) {
			return err
		}
		r.cfg.Log.Warn("watch pods of contract", "contract", r.contract, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return context.Cause(ctx)
}

// take queues one message of the consumer. Its error ends the stream.
func (r *syncRun) take(ctx context.Context, msg *ententev1.SyncRequest) error {
	task := &syncTask{size: 1}
	switch x := msg.GetMessage().(type) {
	case *ententev1.SyncRequest_Apply_:
		o, err := wire.ApplyFrom(x.Apply)
		if err != nil {
			return r.refuseInvalid(ctx, x.Apply, err)
		}
		task.ref, task.hash, task.size = o.Ref, o.Hash(), int64(len(o.JSON))
		task.remember, task.applied = x.Apply.GetRemember() && wire.Patchable(o), o.JSON
		task.do = func(ctx context.Context) error { return r.apply(ctx, o) }
	case *ententev1.SyncRequest_Patch_:
		if remembered, err := r.takePatch(ctx, task, x.Patch); err != nil || !remembered {
			return err
		}
	case *ententev1.SyncRequest_Delete_:
		ref, grace, err := wire.DeleteFrom(x.Delete)
		if wire.ReasonOf(err) == peering.ReasonProtocolUnsupported {
			return r.refuseLater(ctx, x.Delete.GetRef(), nil, err)
		}
		if err != nil {
			return err
		}
		task.ref, task.delete = ref, true
		task.do = func(ctx context.Context) error {
			return r.cfg.Objects.Delete(ctx, r.contract, ref, grace)
		}
	case *ententev1.SyncRequest_Pong_:
		if r.cfg.Fences != nil {
			r.cfg.Fences.Answered(r.contract, x.Pong.GetNumber())
		}
		return nil
	case nil:
		if len(msg.ProtoReflect().GetUnknown()) == 0 {
			return peering.Errorf(peering.ReasonRequestInvalid, "a message of a sync stream must not be empty")
		}
		return nil // of a later revision of the protocol
	default:
		return peering.Errorf(peering.ReasonRequestInvalid, "a sync stream takes apply, delete and answer after open, not %T", x)
	}
	return r.queue(ctx, task)
}

// queue enqueues a task. Nothing more is read while too much is in flight, so the consumer waits.
func (r *syncRun) queue(ctx context.Context, task *syncTask) error {
	if err := r.count.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	if err := r.bytes.Acquire(ctx, task.size); err != nil {
		r.count.Release(1)
		return context.Cause(ctx)
	}
	if older, ok := r.enqueue(ctx, task); ok {
		r.count.Release(1)
		r.bytes.Release(older.size)
		return r.out.put(ctx, wire.AckTo(peering.Ack{Ref: older.ref, Hash: older.hash, Refusal: &peering.Refusal{
			Reason: peering.RefusedInternal, Retryable: true,
			Message: fmt.Sprintf("a newer state of %s came before this one was written", older.ref),
		}}))
	}
	return nil
}

// refuseInvalid refuses a malformed object if its reference and hash are valid. Otherwise
// the stream ends.
func (r *syncRun) refuseInvalid(ctx context.Context, m *ententev1.SyncRequest_Apply, cause error) error {
	ref, err := wire.ObjectRefFrom(m.GetRef())
	if len(m.GetHash()) == len(peering.Hash{}) && wire.ReasonOf(err) == peering.ReasonProtocolUnsupported {
		return r.refuseLater(ctx, m.GetRef(), m.GetHash(), err)
	}
	if err != nil || len(m.GetHash()) != len(peering.Hash{}) {
		return cause
	}
	return r.out.put(ctx, wire.AckTo(peering.Ack{
		Ref: ref, Hash: peering.Hash(m.GetHash()),
		Refusal: &peering.Refusal{Reason: peering.RefusedInvalid, Message: cause.Error()},
	}))
}

// refuseLater refuses an object of a kind that a later revision of the protocol added, by the
// reference that came with it.
func (r *syncRun) refuseLater(ctx context.Context, ref *ententev1.ObjectRef, hash []byte, cause error) error {
	ref.ProtoReflect().SetUnknown(nil)
	return r.out.put(ctx, &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Ack_{Ack: &ententev1.SyncResponse_Ack{
		Ref: ref, Hash: hash, Reason: string(peering.RefusedInvalid), Message: cause.Error(),
	}}})
}

// enqueue puts a task behind the others of its namespace, and begins the tasks that can begin. If
// an earlier state of the same object has not begun yet, the new task replaces the older one,
// which is returned.
func (r *syncRun) enqueue(ctx context.Context, t *syncTask) (older *syncTask, superseded bool) {
	space := t.ref.Namespace
	if t.ref.Kind == peering.KindNamespace {
		space = t.ref.Name
	}
	r.lanesMu.Lock()
	defer r.lanesMu.Unlock()
	l, ok := r.lanes[space]
	if !ok {
		l = &lane{}
		r.lanes[space] = l
	}
	for i, older := range slices.Backward(l.tasks) {
		if older.ref != t.ref {
			continue
		}
		if older.begun || older.delete || t.delete {
			break
		}
		l.tasks[i] = t
		return older, true
	}
	l.tasks = append(l.tasks, t)
	r.begin(ctx, space, l)
	return nil, false
}

// begin starts the tasks of a namespace that are due. The caller holds the lock.
func (r *syncRun) begin(ctx context.Context, space string, l *lane) {
	for _, t := range l.due() {
		r.work.Go(func() {
			r.carryOut(ctx, t)
			r.lanesMu.Lock()
			defer r.lanesMu.Unlock()
			l.tasks = slices.DeleteFunc(l.tasks, func(x *syncTask) bool { return x == t })
			r.begin(ctx, space, l)
			if len(l.tasks) == 0 {
				delete(r.lanes, space)
			}
		})
	}
}

// carryOut runs a task and acknowledges it. If ctx ends first there is no acknowledgement,
// and the consumer compares again.
func (r *syncRun) carryOut(ctx context.Context, t *syncTask) {
	defer r.count.Release(1)
	defer r.bytes.Release(t.size)
	err := r.inTurn(ctx, t)
	if ctx.Err() != nil {
		return
	}
	ack := peering.Ack{Ref: t.ref, Hash: t.hash}
	if err == nil && t.remember {
		ack.Remembered = r.bases.put(t.ref, t.hash, t.applied)
	} else {
		r.bases.drop(t.ref)
	}
	if err != nil && !errors.As(err, &ack.Refusal) {
		r.cfg.Log.Warn("carry out sync message", "contract", r.contract, "object", t.ref.String(), "err", err)
		ack.Refusal = &peering.Refusal{
			Reason: peering.RefusedInternal, Retryable: true,
			Message: fmt.Sprintf("the provider's cluster did not take %s; it is tried again, and the provider's agent says why in its log", t.ref),
		}
	}
	// It fails only when ctx ended: then the consumer compares again.
	_ = r.out.put(ctx, wire.AckTo(ack))
}

// inTurn runs a task when a slot of the peer is free. A task that waits for the peer's write
// budget occupies none.
func (r *syncRun) inTurn(ctx context.Context, t *syncTask) error {
	turn := r.shared.deletes
	if !t.delete {
		admitted, err := r.cfg.Objects.Admit(ctx, r.contract)
		if err != nil {
			return err //nolint:wrapcheck // a refusal goes to the consumer as it is
		}
		defer admitted()
		turn = r.shared.applies
	}
	if err := turn.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	defer turn.Release(1)
	limited, cancel := context.WithTimeout(ctx, offloadApplyTimeout)
	defer cancel()
	return try(limited, t.do)
}

// try turns a panic into an error: no object from outside stops the agent.
func try(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return do(ctx)
}

// apply applies an object if the contract is still open.
func (r *syncRun) apply(ctx context.Context, o peering.Object) error {
	if err := r.open(r.peer, r.contract); err != nil {
		return &peering.Refusal{Reason: peering.RefusedContract, Message: err.Error()}
	}
	return r.cfg.Objects.Apply(ctx, r.contract, o)
}
