package client

import (
	"cmp"
	"slices"
	"time"

	"github.com/entente-dev/entente/peering"
)

// mirrorKey names an object: another UID is another object, whatever its name.
type mirrorKey struct {
	kind peering.Kind
	uid  string
}

func keyOf(r peering.ObjectRef) mirrorKey { return mirrorKey{r.Kind, r.UID} }

// sentKind is what of an object is on its way and not answered.
type sentKind uint8

const (
	sentNothing sentKind = iota
	sentApply
	sentDelete
)

// mirrorRecord is all that is known of one object, on both sides.
type mirrorRecord struct {
	ref peering.ObjectRef

	// At home: wanted in this form, or positively gone. Neither: an orphan, if it
	// is held.
	want   bool
	object peering.Object
	hash   peering.Hash
	// told: it was reported that the provider has it in this form.
	told   bool
	unwant bool
	grace  *int64
	// marked: home says that the provider ran the pod, and is about to say what becomes of it.
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
	// late: it was not among what the provider said it has, and a status told of it.
	late bool

	// taken is since when another pod has this one's name at the provider, which ends
	// first; zero if none does.
	taken time.Time

	// On its way.
	sent     sentKind
	sentHash peering.Hash
	sentSize int
	sentAt   time.Time

	// Refused: the last answer to this form was no.
	refused     bool
	refusedHash peering.Hash
	final       bool
	attempts    int
	notBefore   time.Time
}

// mirrorStepKind is what to do about an object.
type mirrorStepKind uint8

const (
	// stepWait: nothing, or nothing before a time.
	stepWait mirrorStepKind = iota
	// stepForget: neither side has it.
	stepForget
	// stepHeld: report that the provider has it as it is wanted, since before this
	// Mirror asked for it, then as stepWait.
	stepHeld
	// stepGone: report that the pod is no more, then as stepWait.
	stepGone
	// stepAsk: ask whether an orphan may be deleted.
	stepAsk
	stepDelete
	stepApply
)

// mirrorStep is one thing to do, with what it needs.
type mirrorStep struct {
	kind   mirrorStepKind
	ref    peering.ObjectRef
	object peering.Object
	grace  *int64
	held   peering.Held
}

// decide says what to do about an object now. A zero wake means that only an
// event changes the answer. namespaceOpen says that the answer about the
// object's namespace is still to come.
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
	case r.held && r.heldHash == r.hash && !r.told:
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

// mirrorState is what a Mirror knows: a value without lock, clock or stream.
type mirrorState struct {
	records map[mirrorKey]*mirrorRecord
	// spaces finds a namespace's record by its name.
	spaces map[string]mirrorKey
	// names finds the records of all pods with a name: of a StatefulSet's pod and its
	// successor.
	names map[podName]map[mirrorKey]struct{}
	// wanted is how many objects are, bytes their size, and held how many the provider does.
	wanted, bytes, held int
	// barred has this side's refusals of what is wanted, and unsaid which of these are to be said.
	barred map[mirrorKey]peering.Ack
	unsaid map[mirrorKey]struct{}
	// late is how many records are.
	late int
	// ready: everything that is wanted was said.
	ready bool
	// synced: what is held was said, on the stream of now.
	synced bool
	// lastBy is until when a pod that is not held is not called gone: how it ended may be said first.
	lastBy time.Time
	// inFlight is what is sent and not answered.
	inFlight map[mirrorKey]struct{}
	// applies and applyBytes are how much of that is to be applied.
	applies, applyBytes int
	// dirty has what to decide; waiting what to decide when. timers orders the latter, and
	// has some that were overtaken.
	dirty   map[mirrorKey]struct{}
	waiting map[mirrorKey]time.Time
	timers  *queue[mirrorTimer]
	// line is what is sent as soon as there is room, in this order. lined says of all
	// that is in it whether it is to be sent still.
	line  *queue[mirrorLined]
	lined map[mirrorLined]bool
}

// mirrorLined is a step that waits for room.
type mirrorLined struct {
	kind mirrorStepKind
	ref  peering.ObjectRef
}

// mirrorTimer says when an object is to be decided.
type mirrorTimer struct {
	key mirrorKey
	at  time.Time
}

func newMirrorState() *mirrorState {
	return &mirrorState{
		records: make(map[mirrorKey]*mirrorRecord),
		spaces:  make(map[string]mirrorKey),
		names:   make(map[podName]map[mirrorKey]struct{}),
		dirty:   make(map[mirrorKey]struct{}),
		waiting: make(map[mirrorKey]time.Time),
		timers:  newQueue(compareTimers),
		line:    newQueue(compareSteps),
		lined:   make(map[mirrorLined]bool),
		barred:  make(map[mirrorKey]peering.Ack),
		unsaid:  make(map[mirrorKey]struct{}),

		inFlight: make(map[mirrorKey]struct{}),
	}
}

func (s *mirrorState) record(ref peering.ObjectRef) *mirrorRecord {
	k := keyOf(ref)
	r, ok := s.records[k]
	if !ok {
		r = &mirrorRecord{ref: ref}
		s.records[k] = r
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
	return r
}

// podName is what only one pod at a time can have.
type podName struct{ namespace, name string }

func podNameOf(r peering.ObjectRef) podName { return podName{r.Namespace, r.Name} }

// nameTaken says whether another pod has this one's name at the provider.
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

// touchName has the pods with a name decided about.
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
	s.bytes -= len(r.object.JSON)
	if r.late {
		s.late--
	}
	delete(s.records, k)
	delete(s.dirty, k)
	delete(s.waiting, k)
	s.leaveLine(r.ref)
	switch {
	case r.ref.Kind == peering.KindNamespace && s.spaces[r.ref.Name] == k:
		delete(s.spaces, r.ref.Name)
	case r.ref.Kind == peering.KindPod:
		n := podNameOf(r.ref)
		delete(s.names[n], k)
		if len(s.names[n]) == 0 {
			delete(s.names, n)
		}
	}
}

func (s *mirrorState) touch(k mirrorKey) {
	if r := s.records[k]; r != nil {
		s.leaveLine(r.ref)
	}
	delete(s.waiting, k)
	s.dirty[k] = struct{}{}
}

// leaveLine has no step of an object sent.
func (s *mirrorState) leaveLine(ref peering.ObjectRef) {
	for _, kind := range []mirrorStepKind{stepDelete, stepApply} {
		if l := (mirrorLined{kind, ref}); s.lined[l] {
			s.lined[l] = false
		}
	}
}

// joinLine has a step sent when there is room.
func (s *mirrorState) joinLine(l mirrorLined) {
	if _, ok := s.lined[l]; !ok {
		s.line.push(l)
	}
	s.lined[l] = true
}

// wait has an object decided at a time.
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

// want notes that the object should be there like this. It returns why not, if
// it is beyond a limit.
func (s *mirrorState) want(o peering.Object) *peering.Refusal {
	if refusal := s.admits(o); refusal != nil {
		s.bar(o, refusal)
		return refusal
	}
	s.unbar(keyOf(o.Ref))
	r := s.record(o.Ref)
	if o.Ref.Kind == peering.KindNamespace {
		s.spaces[o.Ref.Name] = keyOf(o.Ref)
	}
	hash := o.Hash()
	r.unwant, r.grace, r.marked = false, nil, false
	if r.want && r.hash == hash {
		return nil
	}
	if !r.want {
		s.wanted++
	}
	s.bytes += len(o.JSON) - len(r.object.JSON)
	r.want, r.object, r.hash, r.told = true, o, hash, false
	s.touch(keyOf(o.Ref))
	return nil
}

func (s *mirrorState) unwantObject(ref peering.ObjectRef, grace *int64) {
	s.unbar(keyOf(ref))
	r := s.record(ref)
	if r.unwant && equalGrace(r.grace, grace) {
		return
	}
	if r.want {
		s.wanted--
	}
	s.bytes -= len(r.object.JSON)
	r.want, r.object, r.hash, r.told = false, peering.Object{}, peering.Hash{}, false
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

// markRan notes that the provider once ran the pod.
func (s *mirrorState) markRan(ref peering.ObjectRef) {
	r := s.record(ref)
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

// connect begins a stream: what is held is about to be said, what was on its
// way is lost.
func (s *mirrorState) connect() {
	s.synced, s.applies, s.applyBytes, s.held = false, 0, 0, 0
	clear(s.inFlight)
	for k, r := range s.records {
		r.held, r.heldHash, r.deleted, r.sent = false, peering.Hash{}, false, sentNothing
		r.final = false
		// A pod that was held is remembered until home said whether it wants it: it ran.
		if s.ready && !r.want && !r.unwant && !r.marked {
			s.forget(k)
		}
	}
}

// hold notes that the provider holds an object. It reports whether there is
// room to know of it.
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

// sync ends the list of what is held.
func (s *mirrorState) sync(now time.Time) {
	s.synced, s.lastBy = true, now.Add(mirrorLastWait)
	s.touchAll()
}

// ack takes an answer, and reports whether it answers something.
func (s *mirrorState) ack(a peering.Ack, now time.Time) bool {
	k := keyOf(a.Ref)
	r, ok := s.records[k]
	if !ok || r.sent == sentNothing || (r.sent == sentApply) != (a.Hash != peering.Hash{}) ||
		r.sent == sentApply && a.Hash != r.sentHash {
		return false
	}
	sent := r.sent
	r.sent = sentNothing
	delete(s.inFlight, k)
	if sent == sentApply {
		s.applies, s.applyBytes = s.applies-1, s.applyBytes-r.sentSize
	}
	s.touch(k)
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
			r.told = r.told || r.want && r.sentHash == r.hash // the answer says it
			r.ran = a.Ref.Kind == peering.KindPod
		case a.Ref.Kind == peering.KindPod && !r.lost:
			r.deleted = true
		case a.Ref.Kind == peering.KindClaim:
			// Who asked waits for the answer, also about one that was not there.
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

// namespaceAnswered lets what waited for a namespace go on.
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

// podStatus takes a provider's word on a pod, and reports whether home should hear it. One that is
// not known, and is not gone, the provider holds: it was made late, for a stream that had ended. Whether
// it may go is asked after a while, and of few at a time, as each asks the API server.
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
		return false // home heard that it is gone, and wanted no more than that
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

// orphan takes the answer to a stepAsk.
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

// overdue says whether something was sent so long ago that the stream has to be
// taken for dead.
func (s *mirrorState) overdue(now time.Time) bool {
	for k := range s.inFlight {
		if r := s.records[k]; !now.Before(r.sentAt.Add(mirrorAckTimeout)) {
			return true
		}
	}
	return false
}

// namespaceOpen says whether an object has to wait for the answer about its
// namespace.
func (s *mirrorState) namespaceOpen(r *mirrorRecord) bool {
	if r.ref.Kind == peering.KindNamespace {
		return false
	}
	k, ok := s.spaces[r.ref.Namespace]
	if !ok {
		return false
	}
	ns := s.records[k]
	return ns.want && !ns.held && !ns.refused
}

// plan returns what to do now, in the order in which to do it, and when to ask
// again at the latest (zero: when something happens). What it returns to be
// sent counts as sent. It takes as long as what changed is much, however many objects
// there are or wait for room.
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

// timer returns what of waiting is to be decided first, or nil.
func (s *mirrorState) timer() *mirrorTimer {
	for t := s.timers.first(); t != nil; t = s.timers.first() {
		if at, ok := s.waiting[t.key]; ok && at.Equal(t.at) {
			return t
		}
		s.timers.pop()
	}
	return nil
}

// decide returns what to do about an object, unless it has to wait or is forgotten.
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
		held: peering.Held{Ref: r.ref, Hash: r.heldHash},
	}, true
}

// send takes from the line what fits into what may be on its way.
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
		// Another object may have come into its way since.
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

// commit notes a step as taken.
func (s *mirrorState) commit(st mirrorStep, now time.Time) {
	k := keyOf(st.ref)
	r := s.records[k]
	switch st.kind {
	case stepHeld:
		delete(s.dirty, k)
		r.told = true
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
			s.applies, s.applyBytes = s.applies+1, s.applyBytes+r.sentSize
		}
	case stepWait, stepForget:
	}
}

// compareSteps orders: reports and questions, then deletes from the pods down,
// which makes room, then applies from the namespaces up, which a pod needs.
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
