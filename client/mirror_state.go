package client

import (
	"cmp"
	"slices"
	"time"

	"github.com/entente-dev/entente/peering"
)

// mirrorKey identifies an object: another UID is another object, whatever its name.
type mirrorKey struct {
	kind peering.Kind
	uid  string
}

func keyOf(r peering.ObjectRef) mirrorKey { return mirrorKey{r.Kind, r.UID} }

// sentKind is what was sent of an object and is not acknowledged.
type sentKind uint8

const (
	sentNothing sentKind = iota
	sentApply
	sentDelete
)

// mirrorRecord is the state of one object on both sides.
type mirrorRecord struct {
	ref peering.ObjectRef

	// At home: wanted in this form, or positively gone. If neither, and it is held, it is an
	// orphan.
	want   bool
	object peering.Object
	hash   peering.Hash
	// reported: the handler knows that the provider has it in this form.
	reported bool
	unwant   bool
	grace    *int64
	// marked: Ran was called for the pod, and Want or Unwant is about to be.
	marked bool

	// At the provider, as of this stream.
	held     bool
	heldHash peering.Hash
	// deleted: this stream's delete was carried out. A pod then still ends.
	deleted bool
	// ran: the provider once had this pod. If it no longer does, the pod is gone
	// and is not run again.
	ran  bool
	lost bool
	// late: the provider did not list it, and it became known by a status.
	late bool

	// taken is since when another pod, which has to end first, has this one's name at the
	// provider, if one has.
	taken time.Time

	// Sent and not acknowledged.
	sent     sentKind
	sentHash peering.Hash
	sentSize int
	sentAt   time.Time
	// sentJSON is what was sent, and patched says that it may have been a patch of base.
	sentJSON []byte
	patched  bool
	// base is what the provider remembers on this stream; nil if it remembers nothing.
	base     []byte
	baseHash peering.Hash

	// Refused: the last acknowledgement of this form was a refusal.
	refused     bool
	refusedHash peering.Hash
	final       bool
	attempts    int
	notBefore   time.Time
}

// mirrorStepKind is what to do with an object.
type mirrorStepKind uint8

const (
	// stepWait: nothing, or nothing until a time.
	stepWait mirrorStepKind = iota
	// stepForget: neither side has it.
	stepForget
	// stepHeld: report that the provider has it as it is wanted, since before this
	// Mirror asked for it, then as stepWait.
	stepHeld
	// stepGone: report that the pod is gone, then as stepWait.
	stepGone
	// stepAsk: ask whether an orphan may be deleted.
	stepAsk
	stepDelete
	stepApply
)

// mirrorStep is a step with its object.
type mirrorStep struct {
	kind   mirrorStepKind
	ref    peering.ObjectRef
	object peering.Object
	grace  *int64
	held   peering.Held
	// base is what the provider remembers of the object; nil if it remembers nothing.
	base     []byte
	baseHash peering.Hash
}

// decide returns the next step for an object. wake is when to decide again, or zero if only an
// event can change the decision. namespaceOpen means that the object's namespace is not
// acknowledged yet.
func decide(r *mirrorRecord, ready, namespaceOpen bool, now time.Time) (step mirrorStepKind, wake time.Time) {
	if r.sent != sentNothing {
		return stepWait, r.sentAt.Add(mirrorAckTimeout)
	}
	switch {
	case r.unwant:
		return decideUnwanted(r, ready, now)
	case r.want:
		return decideWanted(r, namespaceOpen, now)
	case !r.held && r.marked:
		return stepWait, time.Time{}
	case !r.held:
		return stepForget, time.Time{}
	case !ready:
		return stepWait, time.Time{}
	case now.Before(r.notBefore):
		return stepWait, r.notBefore
	}
	return stepAsk, time.Time{}
}

func decideUnwanted(r *mirrorRecord, ready bool, now time.Time) (mirrorStepKind, time.Time) {
	switch {
	case !r.held && r.ref.Kind == peering.KindPod && !r.lost:
		return stepGone, time.Time{}
	case !r.held && (r.ref.Kind != peering.KindClaim || r.deleted):
		return stepForget, time.Time{}
	case !ready || r.deleted:
		return stepWait, time.Time{}
	case now.Before(r.notBefore):
		return stepWait, r.notBefore
	}
	return stepDelete, time.Time{}
}

func decideWanted(r *mirrorRecord, namespaceOpen bool, now time.Time) (mirrorStepKind, time.Time) {
	switch {
	case r.held && r.heldHash == r.hash && !r.reported:
		return stepHeld, time.Time{}
	case r.held && r.heldHash == r.hash:
		return stepWait, time.Time{}
	case r.ref.Kind == peering.KindPod && !r.held && r.ran && !r.lost:
		return stepGone, time.Time{}
	case r.ref.Kind == peering.KindPod && r.lost:
		return stepWait, time.Time{}
	case namespaceOpen:
		return stepWait, time.Time{}
	case !r.held && !r.taken.IsZero() && now.Before(r.taken.Add(mirrorNameWait)):
		return stepWait, r.taken.Add(mirrorNameWait)
	case r.refused && r.refusedHash == r.hash && r.final:
		return stepWait, time.Time{}
	case r.refused && r.refusedHash == r.hash && now.Before(r.notBefore):
		return stepWait, r.notBefore
	}
	return stepApply, time.Time{}
}

// mirrorState is the state of a Mirror: a value without lock, clock or stream.
type mirrorState struct {
	records map[mirrorKey]*mirrorRecord
	// spaces has the key of a namespace's record by its name.
	spaces map[string]mirrorKey
	// names has the keys of all pods with a name: of a StatefulSet's pod and its successor.
	names map[podName]map[mirrorKey]struct{}
	// wanted is the number of wanted objects, bytes their size, and held the number of objects
	// that the provider holds.
	wanted, bytes, held int
	// uses has the wanted objects by namespace.
	uses map[string]mirrorUse
	// barred has this side's refusals of wanted objects, and unreported those that are still to be
	// reported.
	barred     map[mirrorKey]peering.Ack
	unreported map[mirrorKey]struct{}
	// late is how many records are late.
	late int
	// ready: Want was called for everything that is wanted.
	ready bool
	// synced: the provider listed what it holds, on the current stream.
	synced bool
	// lastBy is until when a pod that is not held is not reported as gone, since the provider may
	// still send how it ended.
	lastBy time.Time
	// inFlight has the objects that were sent and not acknowledged.
	inFlight map[mirrorKey]struct{}
	// applies and applyBytes are the number and size of the applies among them.
	applies, applyBytes int
	// dirty has the objects to decide now, waiting those to decide later, and when. timers orders
	// the latter, and also has outdated entries.
	dirty   map[mirrorKey]struct{}
	waiting map[mirrorKey]time.Time
	timers  *queue[mirrorTimer]
	// line has the steps to send as soon as there is room, in order. lined has which of them are
	// still to be sent.
	line  *queue[mirrorLined]
	lined map[mirrorLined]bool
}

// mirrorLined is a step that waits for room.
type mirrorLined struct {
	kind mirrorStepKind
	ref  peering.ObjectRef
}

// mirrorTimer is when an object is to be decided.
type mirrorTimer struct {
	key mirrorKey
	at  time.Time
}

func newMirrorState() *mirrorState {
	return &mirrorState{
		records:    make(map[mirrorKey]*mirrorRecord),
		spaces:     make(map[string]mirrorKey),
		uses:       make(map[string]mirrorUse),
		names:      make(map[podName]map[mirrorKey]struct{}),
		dirty:      make(map[mirrorKey]struct{}),
		waiting:    make(map[mirrorKey]time.Time),
		timers:     newQueue(compareTimers),
		line:       newQueue(compareSteps),
		lined:      make(map[mirrorLined]bool),
		barred:     make(map[mirrorKey]peering.Ack),
		unreported: make(map[mirrorKey]struct{}),

		inFlight: make(map[mirrorKey]struct{}),
	}
}

// record returns the record of an object, under the name by which it became known.
func (s *mirrorState) record(ref peering.ObjectRef) *mirrorRecord {
	k := keyOf(ref)
	r, ok := s.records[k]
	if !ok {
		r = &mirrorRecord{ref: ref}
		s.records[k] = r
		s.enterName(k, ref)
	}
	return r
}

// recordOfHome returns the record of an object of home, under home's name for it: a provider may have named it
// otherwise.
func (s *mirrorState) recordOfHome(ref peering.ObjectRef) *mirrorRecord {
	k, r := keyOf(ref), s.record(ref)
	if r.ref != ref {
		s.leaveLine(r.ref)
		s.leaveName(k, r.ref)
		r.ref = ref
		s.enterName(k, ref)
		s.touch(k)
	}
	return r
}

// enterName has an object be found by its name.
func (s *mirrorState) enterName(k mirrorKey, ref peering.ObjectRef) {
	switch ref.Kind {
	case peering.KindNamespace:
		s.spaces[ref.Name] = k
	case peering.KindPod:
		n := podNameOf(ref)
		if s.names[n] == nil {
			s.names[n] = make(map[mirrorKey]struct{}, 1)
		}
		s.names[n][k] = struct{}{}
	case peering.KindConfigMap, peering.KindSecret, peering.KindService, peering.KindNetworkPolicy, peering.KindClaim:
	}
}

// leaveName has an object no longer be found by a name.
func (s *mirrorState) leaveName(k mirrorKey, ref peering.ObjectRef) {
	switch {
	case ref.Kind == peering.KindNamespace && s.spaces[ref.Name] == k:
		delete(s.spaces, ref.Name)
	case ref.Kind == peering.KindPod:
		n := podNameOf(ref)
		delete(s.names[n], k)
		if len(s.names[n]) == 0 {
			delete(s.names, n)
		}
	}
}

// podName is a name that only one pod at a time can have.
type podName struct{ namespace, name string }

func podNameOf(r peering.ObjectRef) podName { return podName{r.Namespace, r.Name} }

// nameTaken reports whether another pod has this one's name at the provider.
func (s *mirrorState) nameTaken(k mirrorKey, r *mirrorRecord) bool {
	if k.kind != peering.KindPod {
		return false
	}
	for other := range s.names[podNameOf(r.ref)] {
		if o := s.records[other]; other != k && (o.held && !o.lost || o.sent == sentApply) {
			return true
		}
	}
	return false
}

// touchName makes all pods with a name dirty.
func (s *mirrorState) touchName(ref peering.ObjectRef) {
	if ref.Kind != peering.KindPod {
		return
	}
	for k := range s.names[podNameOf(ref)] {
		s.touch(k)
	}
}

func (s *mirrorState) forget(k mirrorKey) {
	r, ok := s.records[k]
	if !ok {
		return
	}
	if r.late {
		s.late--
	}
	delete(s.records, k)
	delete(s.dirty, k)
	delete(s.waiting, k)
	s.leaveLine(r.ref)
	s.leaveName(k, r.ref)
}

func (s *mirrorState) touch(k mirrorKey) {
	if r := s.records[k]; r != nil {
		s.leaveLine(r.ref)
	}
	delete(s.waiting, k)
	s.dirty[k] = struct{}{}
}

// leaveLine removes the step of an object from the line.
func (s *mirrorState) leaveLine(ref peering.ObjectRef) {
	for _, kind := range []mirrorStepKind{stepDelete, stepApply} {
		if l := (mirrorLined{kind, ref}); s.lined[l] {
			s.lined[l] = false
		}
	}
}

// joinLine adds a step to the line.
func (s *mirrorState) joinLine(l mirrorLined) {
	if _, ok := s.lined[l]; !ok {
		s.line.push(l)
	}
	s.lined[l] = true
}

// wait schedules the decision about an object.
func (s *mirrorState) wait(k mirrorKey, at time.Time) {
	s.waiting[k] = at
	s.timers.push(mirrorTimer{k, at})
	if s.timers.len() > 2*len(s.waiting)+1000 {
		s.timers = newQueue(compareTimers)
		for k, at := range s.waiting {
			s.timers.push(mirrorTimer{k, at})
		}
	}
}

func compareTimers(a, b mirrorTimer) int { return a.at.Compare(b.at) }

// want records the desired state of an object. It returns a refusal if the object is beyond a
// limit.
func (s *mirrorState) want(o peering.Object) *peering.Refusal {
	if refusal := s.admits(o); refusal != nil {
		s.bar(o, refusal)
		return refusal
	}
	s.unbar(keyOf(o.Ref))
	r := s.recordOfHome(o.Ref)
	if o.Ref.Kind == peering.KindNamespace {
		s.spaces[o.Ref.Name] = keyOf(o.Ref)
	}
	hash := o.Hash()
	r.unwant, r.grace, r.marked = false, nil, false
	if r.want && r.hash == hash {
		return nil
	}
	if r.want {
		s.count(r.object.Ref, -1, -len(r.object.JSON))
	}
	s.count(o.Ref, 1, len(o.JSON))
	r.want, r.object, r.hash, r.reported = true, o, hash, false
	s.touch(keyOf(o.Ref))
	return nil
}

func (s *mirrorState) unwantObject(ref peering.ObjectRef, grace *int64) {
	s.unbar(keyOf(ref))
	r := s.recordOfHome(ref)
	if r.unwant && equalGrace(r.grace, grace) {
		return
	}
	if r.want {
		s.count(r.object.Ref, -1, -len(r.object.JSON))
	}
	r.want, r.object, r.hash, r.reported = false, peering.Object{}, peering.Hash{}, false
	// A new grace period is a new delete.
	r.unwant, r.grace, r.deleted, r.marked = true, grace, false, false
	r.attempts, r.notBefore = 0, time.Time{}
	s.touch(keyOf(ref))
}

func equalGrace(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// markRan records that the provider once ran the pod.
func (s *mirrorState) markRan(ref peering.ObjectRef) {
	r := s.recordOfHome(ref)
	r.ran, r.marked = true, !r.want && !r.unwant
	s.touch(keyOf(ref))
}

func (s *mirrorState) setReady() {
	s.ready = true
	s.touchAll()
}

func (s *mirrorState) touchAll() {
	for k := range s.records {
		s.touch(k)
	}
}

// connect begins a stream: the provider is about to list what it holds, and what was in flight is
// lost.
func (s *mirrorState) connect() {
	s.synced, s.applies, s.applyBytes, s.held = false, 0, 0, 0
	clear(s.inFlight)
	for k, r := range s.records {
		r.held, r.heldHash, r.deleted, r.sent = false, peering.Hash{}, false, sentNothing
		r.final, r.sentJSON, r.patched, r.base = false, nil, false, nil
		// Keep the record that a pod ran until home is ready.
		if s.ready && !r.want && !r.unwant && !r.marked {
			s.forget(k)
		}
	}
}

// hold records that the provider holds an object. It returns false if there is no room for the
// record.
func (s *mirrorState) hold(h peering.Held) bool {
	_, known := s.records[keyOf(h.Ref)]
	if s.held >= mirrorMaxObjects || !known && len(s.records) >= mirrorMaxRecords {
		return false
	}
	s.held++
	r := s.record(h.Ref)
	r.held, r.heldHash = true, h.Hash
	r.ran = h.Ref.Kind == peering.KindPod
	return true
}

// sync ends the list of what the provider holds.
func (s *mirrorState) sync(now time.Time) {
	s.synced, s.lastBy = true, now.Add(mirrorLastWait)
	s.touchAll()
}

// ack handles an acknowledgement, and reports whether it is for something that was sent.
func (s *mirrorState) ack(a peering.Ack, now time.Time) bool {
	k := keyOf(a.Ref)
	r, ok := s.records[k]
	if !ok || r.sent == sentNothing || (r.sent == sentApply) != (a.Hash != peering.Hash{}) ||
		r.sent == sentApply && a.Hash != r.sentHash {
		return false
	}
	sent, whole := r.sent, !r.patched
	r.remember(a)
	r.sent = sentNothing
	delete(s.inFlight, k)
	if sent == sentApply {
		s.applies, s.applyBytes = s.applies-1, s.applyBytes-r.sentSize
	}
	s.touch(k)
	if a.Refusal != nil && !whole {
		return false // the whole object is sent at once, and the answer to that counts
	}
	if a.Refusal != nil {
		r.attempts++
		r.notBefore = now.Add(min(mirrorRetryMin<<min(r.attempts-1, 8), mirrorRetryMax))
		if sent == sentApply {
			r.refused, r.refusedHash, r.final = true, r.sentHash, !a.Refusal.Retryable
		}
	} else {
		r.attempts, r.notBefore, r.refused = 0, time.Time{}, false
		switch {
		case sent == sentApply:
			r.held, r.heldHash = true, r.sentHash
			r.reported = r.reported || r.want && r.sentHash == r.hash // the handler learns it by the acknowledgement
			r.ran = a.Ref.Kind == peering.KindPod
		case a.Ref.Kind == peering.KindPod && !r.lost:
			r.deleted = true
		case a.Ref.Kind == peering.KindClaim:
			// The caller waits for the acknowledgement, also of an object that did not exist.
			r.deleted, r.held, r.heldHash = true, false, peering.Hash{}
		default:
			r.held, r.heldHash = false, peering.Hash{}
		}
	}
	if a.Ref.Kind == peering.KindNamespace && sent == sentApply {
		s.namespaceAnswered(a.Ref.Name, a.Refusal == nil)
	}
	return true
}

// remember records what the provider remembers after an acknowledgement.
func (r *mirrorRecord) remember(a peering.Ack) {
	r.base, r.baseHash = nil, peering.Hash{}
	if r.sent == sentApply && a.Refusal == nil && a.Remembered {
		r.base, r.baseHash = r.sentJSON, r.sentHash
	}
	r.sentJSON, r.patched = nil, false
}

// namespaceAnswered continues what waited for a namespace's acknowledgement.
func (s *mirrorState) namespaceAnswered(name string, accepted bool) {
	for k, r := range s.records {
		if r.ref.Namespace != name {
			continue
		}
		if accepted && r.refused && !r.final {
			r.notBefore = time.Time{}
		}
		s.touch(k)
	}
}

// podStatus handles the status of a pod, and reports whether it is passed to the handler. An
// unknown pod that is not gone was created late, for a stream that had ended: it is recorded as
// held. After a while the handler is asked whether it may be deleted, for few pods at a time,
// since each costs a request to the API server.
func (s *mirrorState) podStatus(p peering.PodStatus, now time.Time) bool {
	k := keyOf(p.Ref)
	r, ok := s.records[k]
	if !ok {
		if !p.Gone && p.Ref.Kind == peering.KindPod && s.late < mirrorMaxLate && s.hold(peering.Held{Ref: p.Ref}) {
			r = s.records[k]
			r.late, r.notBefore = true, now.Add(mirrorLateWait)
			s.late++
			s.touch(k)
		}
		return false
	}
	if p.Gone && r.unwant && r.lost {
		return false // it was already reported as gone
	}
	if p.Gone {
		r.ran, r.lost = true, true
		if r.unwant && r.sent == sentNothing {
			r.held = false
		}
		s.touchName(p.Ref)
		s.touch(k)
	}
	return true
}

// orphan handles the result of a stepAsk.
func (s *mirrorState) orphan(ref peering.ObjectRef, mayGo bool, now time.Time) {
	r, ok := s.records[keyOf(ref)]
	if !ok || r.want || r.unwant {
		return
	}
	r.unwant = mayGo
	r.notBefore = time.Time{}
	if !mayGo {
		r.notBefore = now.Add(mirrorOrphanInterval)
	}
	s.touch(keyOf(ref))
}

// overdue reports whether something was sent so long ago that the stream counts as dead.
func (s *mirrorState) overdue(now time.Time) bool {
	for k := range s.inFlight {
		if r := s.records[k]; !now.Before(r.sentAt.Add(mirrorAckTimeout)) {
			return true
		}
	}
	return false
}

// namespaceOpen reports whether an object has to wait until its namespace is acknowledged.
func (s *mirrorState) namespaceOpen(r *mirrorRecord) bool {
	if r.ref.Kind == peering.KindNamespace {
		return false
	}
	k, ok := s.spaces[r.ref.Namespace]
	if !ok {
		return false
	}
	ns := s.records[k]
	return ns != nil && ns.want && !ns.held && !ns.refused
}

// plan returns the steps to do now, in order, and when to call it again at the latest (zero: when
// something happens). Applies and deletes that it returns count as sent. Its cost depends on how
// much changed, and not on how many objects there are or wait for room.
func (s *mirrorState) plan(now time.Time) (steps []mirrorStep, wake time.Time) {
	if !s.synced {
		return nil, time.Time{}
	}
	for t := s.timer(); t != nil && !now.Before(t.at); t = s.timer() {
		s.touch(t.key)
	}
	for k := range s.dirty {
		step, ok := s.decide(k, now)
		switch {
		case !ok:
		case step.kind == stepDelete || step.kind == stepApply:
			delete(s.dirty, k)
			s.joinLine(mirrorLined{step.kind, step.ref})
		default:
			steps = append(steps, step)
		}
	}
	slices.SortFunc(steps, func(a, b mirrorStep) int {
		return compareSteps(mirrorLined{a.kind, a.ref}, mirrorLined{b.kind, b.ref})
	})
	for _, st := range steps {
		s.commit(st, now)
	}
	steps = append(steps, s.send(now)...)
	switch t := s.timer(); {
	case len(s.dirty) > 0:
		wake = now
	case t != nil:
		wake = t.at
	}
	return steps, wake
}

// timer returns the first timer of waiting, or nil.
func (s *mirrorState) timer() *mirrorTimer {
	for t := s.timers.first(); t != nil; t = s.timers.first() {
		if at, ok := s.waiting[t.key]; ok && at.Equal(t.at) {
			return t
		}
		s.timers.pop()
	}
	return nil
}

// decide returns the step for an object, unless it has to wait or is forgotten.
func (s *mirrorState) decide(k mirrorKey, now time.Time) (mirrorStep, bool) {
	r := s.records[k]
	if r == nil {
		delete(s.dirty, k)
		return mirrorStep{}, false
	}
	switch taken := s.nameTaken(k, r); {
	case !taken:
		r.taken = time.Time{}
	case r.taken.IsZero():
		r.taken = now
	}
	kind, at := decide(r, s.ready, s.namespaceOpen(r), now)
	if kind == stepGone && now.Before(s.lastBy) {
		kind, at = stepWait, s.lastBy
	}
	switch kind {
	case stepWait:
		delete(s.dirty, k)
		if !at.IsZero() {
			s.wait(k, at)
		}
		return mirrorStep{}, false
	case stepForget:
		s.forget(k)
		return mirrorStep{}, false
	case stepHeld, stepGone, stepAsk, stepDelete, stepApply:
	}
	return mirrorStep{
		kind: kind, ref: r.ref, object: r.object, grace: r.grace,
		held: peering.Held{Ref: r.ref, Hash: r.heldHash}, base: r.base, baseHash: r.baseHash,
	}, true
}

// send takes steps from the line as far as the limits of what is in flight allow.
func (s *mirrorState) send(now time.Time) (taken []mirrorStep) {
	for next := s.line.first(); next != nil && len(s.inFlight) < mirrorMaxInFlight; next = s.line.first() {
		lined, k := *next, keyOf(next.ref)
		if !s.lined[lined] {
			s.line.pop()
			delete(s.lined, lined)
			continue
		}
		// Smaller ones do not pass one that waits for room.
		size := len(s.records[k].object.JSON)
		if lined.kind == stepApply && s.applies > 0 && (s.applies >= mirrorMaxApplies || s.applyBytes+size > mirrorMaxApplyBytes) {
			break
		}
		s.line.pop()
		delete(s.lined, lined)
		// Another object may block it since.
		step, ok := s.decide(k, now)
		switch {
		case !ok:
		case step.kind != lined.kind:
			s.touch(k)
		default:
			s.commit(step, now)
			taken = append(taken, step)
		}
	}
	return taken
}

// commit records a step as done.
func (s *mirrorState) commit(st mirrorStep, now time.Time) {
	k := keyOf(st.ref)
	r := s.records[k]
	switch st.kind {
	case stepHeld:
		delete(s.dirty, k)
		r.reported = true
	case stepGone:
		// Stays dirty: an unwanted pod is forgotten in the next round.
		r.lost = true
	case stepAsk:
		delete(s.dirty, k)
		r.notBefore = now.Add(mirrorOrphanInterval)
		s.wait(k, r.notBefore)
	case stepDelete, stepApply:
		s.inFlight[k] = struct{}{}
		r.sentAt = now
		s.wait(k, now.Add(mirrorAckTimeout))
		r.sent = sentDelete
		if st.kind == stepApply {
			r.sent, r.sentHash, r.sentSize = sentApply, r.hash, len(st.object.JSON)
			r.sentJSON, r.patched = st.object.JSON, st.base != nil
			s.applies, s.applyBytes = s.applies+1, s.applyBytes+r.sentSize
		}
	case stepWait, stepForget:
	}
}

// compareSteps orders steps: reports and questions, then deletes from the pods down, which makes
// room, then applies from the namespaces up, which a pod needs.
func compareSteps(a, b mirrorLined) int {
	kinds := cmp.Compare(a.ref.Kind, b.ref.Kind)
	if a.kind == stepDelete {
		kinds = -kinds
	}
	return cmp.Or(
		cmp.Compare(a.kind, b.kind), kinds,
		cmp.Compare(a.ref.Namespace, b.ref.Namespace),
		cmp.Compare(a.ref.Name, b.ref.Name),
		cmp.Compare(a.ref.UID, b.ref.UID),
	)
}
