package move

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/volumecopy"
)

// Observed contains the objects of a move. Those that do not exist are nil.
type Observed struct {
	Record *Record
	// Claim is the claim of the moved name, Temporary the one that has the new volume first.
	Claim, Temporary *corev1.PersistentVolumeClaim
	// Source and Destination are the volumes; the latter also before the record names it.
	Source, Destination *corev1.PersistentVolume
	Sender, Receiver    *corev1.Pod
	// Users are the pods that use the claim, but for the sender.
	Users []corev1.Pod
	// Prepared means that the secret and the Service of the copy exist.
	Prepared bool
	// Sent and Received are the progress of the two pods; nil if they were not asked.
	Sent, Received *volumecopy.Status
}

// Step is one step of a move.
type Step string

// Steps. Each can be repeated.
const (
	Wait Step = "wait"
	// Prepare makes the secret, the Service and the temporary claim.
	Prepare Step = "prepare"
	// MakeReceiver and MakeSender make the pods; the sender once the receiver can be found.
	MakeReceiver Step = "make the receiver"
	MakeSender   Step = "make the sender"
	// ReplaceReceiver and ReplaceSender delete a pod that has ended.
	ReplaceReceiver Step = "replace the receiver"
	ReplaceSender   Step = "replace the sender"
	// NoteDestination writes the name of the new volume into the record.
	NoteDestination Step = "note the new volume"
	// Keep makes both volumes outlive their claims.
	Keep Step = "keep both volumes"
	// AddFinalizer adds a finalizer to the claim, and Lock deletes the claim: then it stays, no pod can begin to
	// use it, and no other can have its name. RemoveFinalizer removes the finalizer.
	AddFinalizer    Step = "add the finalizer to the claim"
	Lock            Step = "lock the claim"
	RemoveFinalizer Step = "remove the finalizer from the claim"
	// Seal informs the sender that no other pod can use the volume.
	Seal Step = "seal the source"
	// NoteVerified writes into the record that both volumes are equal.
	NoteVerified Step = "note the digest"
	// Unmark makes the receiver remove its marker from the new volume, and NoteUnmarked writes into the record that
	// it did. Before the digest is noted the marker has to stay: where the sender is lost, the claim gets its old
	// volume again, and what pods write to that has to be copied, too.
	Unmark       Step = "remove the marker from the new volume"
	NoteUnmarked Step = "note that the marker is gone"
	// RestoreVolume and RestoreClaim bind the claim to the old volume again, where the sender was
	// lost after the claim was locked, and NoteClaim writes that into the record. The volume is reserved
	// before the name is free: any new claim of that name has this volume.
	RestoreVolume Step = "reserve the old volume"
	RestoreClaim  Step = "make the claim again"
	NoteClaim     Step = "note the claim"
	// DropReceiver, DropTemporary and DropSender delete objects that are no longer needed.
	DropReceiver  Step = "delete the receiver"
	DropTemporary Step = "delete the temporary claim"
	DropSender    Step = "delete the sender"
	// Reserve reserves the new volume for a claim of the moved name.
	Reserve Step = "reserve the new volume"
	// Bind makes that claim.
	Bind Step = "bind the claim"
	// SetPolicy gives the new volume the reclaim policy of its class.
	SetPolicy Step = "set the reclaim policy"
	// DropSource orders the deletion of the old volume.
	DropSource Step = "delete the old volume"
	// Discard makes the new volume be deleted with its claim, and SetSourcePolicy gives the old one its
	// previous reclaim policy, where a move is aborted.
	Discard         Step = "set the reclaim policy of the new volume to Delete"
	SetSourcePolicy Step = "set the reclaim policy of the old volume"
	// Finish deletes the record, and the other objects with it.
	Finish Step = "finish"
	// Done means that nothing is left to do.
	Done Step = "done"
)

// Next returns the next step, and, for Wait, what it waits for. An error says what the user has to
// do first; nothing is lost meanwhile.
func Next(o Observed) (step Step, waiting string, err error) {
	switch {
	case o.Record == nil:
		return Done, "", nil
	case o.Record.Verified != nil:
		return o.swap()
	case o.Record.Aborted:
		return o.abort()
	}
	return o.copy()
}

// locked reports whether no pod can begin to use the old volume.
func (o *Observed) locked() bool {
	return o.Claim != nil && o.Claim.UID == o.Record.UID && o.Claim.DeletionTimestamp != nil
}

// copy returns the steps until both volumes are known to be equal.
func (o *Observed) copy() (Step, string, error) {
	r := o.Record
	if o.Source == nil {
		return "", "", fmt.Errorf("the old volume %s is gone; nothing can be copied. What was copied so far is at %s: kubectl -n %s get pvc %s", r.Source, r.ToName, r.Namespace, r.name())
	}
	if step, waiting, err := o.claimed(); step != "" || err != nil {
		return step, waiting, err
	}
	if step, waiting, err := o.running(); step != "" || err != nil {
		return step, waiting, err
	}
	switch {
	case o.Temporary.Status.Phase != corev1.ClaimBound || o.Destination == nil:
		return Wait, "the new volume to be bound", nil
	case r.Destination == "":
		return NoteDestination, "", nil
	case r.Destination != o.Destination.Name:
		return "", "", fmt.Errorf("claim %s has volume %s, and the new one was %s: delete configmap %s to begin again", r.name(), o.Destination.Name, r.Destination, r.name())
	case o.Sent == nil || o.Received == nil:
		return Wait, "the pods to report their progress", nil
	}
	switch {
	case !o.locked() && o.Sent.Phase != volumecopy.Copied:
		return Wait, progress(o.Sent), nil
	case !o.locked() && !kept(o.Source, o.Destination):
		return Keep, "", nil
	case !o.locked() && !hasFinalizer(o.Claim):
		return AddFinalizer, "", nil
	case !o.locked():
		return Lock, "", nil
	case len(scheduled(o.Users)) > 0:
		return "", "", fmt.Errorf("pods began to use claim %s/%s just before it was locked: %s; delete them, and run this again", r.Namespace, r.Claim, podNames(scheduled(o.Users)))
	case !o.Sent.Sealed:
		return Seal, "", nil
	case o.Sent.Phase != volumecopy.Verified || o.Received.Phase != volumecopy.Verified:
		return Wait, progress(o.Sent), nil
	case o.Sent.Sum != o.Received.Sum || o.Sent.Sum.Digest == "":
		return "", "", fmt.Errorf("the two sides read different volumes: %s and %s", o.Sent.Sum.Digest, o.Received.Sum.Digest)
	}
	return NoteVerified, "", nil
}

// claimed returns the step that leads to the claim having the old volume, used by the sender alone; none if
// that is so.
func (o *Observed) claimed() (Step, string, error) {
	r := o.Record
	switch {
	case o.Claim == nil && !kept(o.Source):
		return "", "", fmt.Errorf("claim %s/%s is gone, and volume %s is deleted with it", r.Namespace, r.Claim, r.Source)
	case (o.Claim == nil || o.locked()) && !kept(o.Source):
		return Keep, "", nil
	case o.Claim == nil || o.locked() && (o.Sender == nil || ended(o.Sender) || o.Sender.DeletionTimestamp != nil):
		return o.restore()
	case o.Claim.UID != r.UID && o.Claim.Spec.VolumeName == r.Source && o.Claim.Status.Phase == corev1.ClaimBound:
		return NoteClaim, "", nil
	case o.Claim.UID != r.UID && (o.Claim.Spec.VolumeName == "" || o.Claim.Spec.VolumeName == r.Source):
		return Wait, "claim " + r.Claim + " to be bound to its old volume", nil
	case o.Claim.UID != r.UID:
		return "", "", fmt.Errorf("another claim %s/%s was created, which has volume %s, while its old volume %s is moved: scale down its workloads, delete it, and run this again",
			r.Namespace, r.Claim, o.Claim.Spec.VolumeName, r.Source)
	case len(o.Users) > 0 && !o.locked():
		return "", "", fmt.Errorf("pods use claim %s/%s: %s\n  next: scale their controller down, or delete the pods, and run this again", r.Namespace, r.Claim, podNames(o.Users))
	}
	return "", "", nil
}

// restore returns the steps where the claim is locked or gone and the sender is gone, too: no other pod can
// mount a volume of a claim that is being deleted.
func (o *Observed) restore() (Step, string, error) {
	switch {
	case o.Sender != nil:
		return dropped(o.Sender.DeletionTimestamp != nil, ReplaceSender, "the sender to end")
	case !reserved(o.Source, o.Record):
		return RestoreVolume, "", nil
	case o.Claim == nil:
		return RestoreClaim, "", nil
	case hasFinalizer(o.Claim):
		return RemoveFinalizer, "", nil
	}
	return Wait, "the locked claim to go", nil
}

// hasFinalizer reports whether a claim stays when it is deleted.
func hasFinalizer(c *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(c.Finalizers, v1alpha1.FinalizerMove)
}

// running returns the step that leads to both pods running; none if they do.
func (o *Observed) running() (Step, string, error) {
	switch {
	case !o.Prepared || o.Temporary == nil:
		return Prepare, "", nil
	case o.Temporary.DeletionTimestamp != nil:
		return "", "", fmt.Errorf("claim %s of the new volume is being deleted: run this again when it is gone", o.Temporary.Name)
	case o.Receiver != nil && o.Receiver.DeletionTimestamp != nil:
		return Wait, "the old receiver to end", nil
	case o.Receiver != nil && ended(o.Receiver):
		return ReplaceReceiver, "", nil
	case o.Receiver == nil:
		return MakeReceiver, "", nil
	case o.Sender != nil && o.Sender.DeletionTimestamp != nil:
		return Wait, "the old sender to end", nil
	case o.Sender != nil && ended(o.Sender):
		return ReplaceSender, "", nil
	}
	if why, err := starting(o.Receiver, "receiver"); why != "" || err != nil {
		return Wait, why, err
	}
	switch {
	case o.Sender == nil:
		return MakeSender, "", nil
	}
	if why, err := starting(o.Sender, "sender"); why != "" || err != nil {
		return Wait, why, err
	}
	return "", "", nil
}

// abort returns the steps that give the claim its old volume and delete the rest. They are possible until
// the volumes are known to be equal.
func (o *Observed) abort() (Step, string, error) {
	r := o.Record
	switch {
	case o.Source == nil:
		return "", "", fmt.Errorf("the old volume %s is gone; what was copied so far is at %s: kubectl -n %s get pvc %s", r.Source, r.ToName, r.Namespace, r.name())
	case o.Sender != nil:
		return dropped(o.Sender.DeletionTimestamp != nil, DropSender, "the sender to end")
	}
	users := o.Users
	o.Users = nil // another claim that waited for it may have it
	step, waiting, err := o.claimed()
	if o.Users = users; step != "" || err != nil {
		return step, waiting, err
	}
	switch {
	case o.Receiver != nil:
		return dropped(o.Receiver.DeletionTimestamp != nil, DropReceiver, "the receiver to end")
	case o.Temporary != nil && o.Destination != nil && o.Destination.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return Discard, "", nil
	case o.Temporary != nil:
		return dropped(o.Temporary.DeletionTimestamp != nil, DropTemporary, "the temporary claim to go")
	case hasFinalizer(o.Claim):
		return RemoveFinalizer, "", nil
	case o.Source.Spec.PersistentVolumeReclaimPolicy != r.SourcePolicy:
		return SetSourcePolicy, "", nil
	}
	return Finish, "", nil
}

// swap returns the steps once both volumes are equal: the new one becomes the claim's.
func (o *Observed) swap() (Step, string, error) {
	r := o.Record
	if o.Destination == nil {
		return "", "", fmt.Errorf("the new volume %s is gone, after it was verified; the old one is %s", r.Destination, r.Source)
	}
	old := o.Claim != nil && o.Claim.UID == r.UID
	bound := o.Claim != nil && !old && o.Claim.Spec.VolumeName == r.Destination
	switch {
	case o.Claim != nil && !old && !bound && o.Claim.Spec.VolumeName != "":
		return "", "", fmt.Errorf("another claim %s/%s was created, which has volume %s: the one that was moved is %s; scale down its workloads, delete that claim, and run this again",
			r.Namespace, r.Claim, o.Claim.Spec.VolumeName, r.Destination)
	case !bound && (!kept(o.Destination) || o.Source != nil && old && !kept(o.Source)):
		return Keep, "", nil
	}
	if step, waiting, err := o.marked(); step != "" || err != nil {
		return step, waiting, err
	}
	switch {
	case o.Receiver != nil:
		return dropped(o.Receiver.DeletionTimestamp != nil, DropReceiver, "the receiver to end")
	case o.Temporary != nil:
		return dropped(o.Temporary.DeletionTimestamp != nil, DropTemporary, "the temporary claim to go")
	case !bound && !reserved(o.Destination, r) && (o.Claim == nil || o.Destination.Spec.ClaimRef == nil || o.Destination.Spec.ClaimRef.UID != o.Claim.UID):
		return Reserve, "", nil
	case o.Sender != nil:
		return dropped(o.Sender.DeletionTimestamp != nil, DropSender, "the sender to end")
	case old && o.Claim.DeletionTimestamp == nil:
		return Lock, "", nil
	case old && hasFinalizer(o.Claim):
		return RemoveFinalizer, "", nil
	case old:
		return Wait, "the old claim to go", nil
	case o.Claim == nil:
		return Bind, "", nil
	case !bound || o.Claim.Status.Phase != corev1.ClaimBound:
		return Wait, "claim " + r.Claim + " to be bound to the new volume", nil
	case o.Destination.Spec.PersistentVolumeReclaimPolicy != r.DestinationPolicy:
		return SetPolicy, "", nil
	case r.DeleteSource && o.Source != nil && kept(o.Source):
		return DropSource, "", nil
	case r.DeleteSource && o.Source != nil:
		return Wait, "the old volume to be deleted", nil
	}
	return Finish, "", nil
}

// marked returns the step that leads to the new volume having no marker; none if that is so. It needs a receiver,
// which may have been lost, and that needs the temporary claim.
func (o *Observed) marked() (Step, string, error) {
	switch r := o.Receiver; {
	case o.Record.Unmarked || o.Temporary == nil:
		return "", "", nil
	case r != nil && r.DeletionTimestamp != nil:
		return Wait, "the old receiver to end", nil
	case r != nil && ended(r):
		return ReplaceReceiver, "", nil
	case r == nil && o.Temporary.DeletionTimestamp != nil:
		return "", "", nil // somebody deleted it, and no pod gets the volume by it: the marker, an empty directory, stays
	case r == nil && !o.Prepared:
		return Prepare, "", nil
	case r == nil:
		return MakeReceiver, "", nil
	}
	if why, err := starting(o.Receiver, "receiver"); why != "" || err != nil {
		return Wait, why, err
	}
	switch {
	case o.Received == nil:
		return Wait, "the receiver to report its progress", nil
	case !o.Received.Sealed:
		return Unmark, "", nil
	case o.Received.Phase != volumecopy.Finished:
		return Wait, strings.TrimSuffix("the receiver to remove its marker: "+o.Received.Problem, ": "), nil
	}
	return NoteUnmarked, "", nil
}

func dropped(going bool, step Step, waiting string) (Step, string, error) {
	if going {
		return Wait, waiting, nil
	}
	return step, "", nil
}

// kept reports whether volumes outlive their claims.
func kept(pvs ...*corev1.PersistentVolume) bool {
	return !slices.ContainsFunc(pvs, func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain
	})
}

// reserved reports whether a volume waits for a claim of the moved name.
func reserved(pv *corev1.PersistentVolume, r *Record) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == r.Namespace && ref.Name == r.Claim && ref.UID == ""
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// scheduled returns the pods that run already, or are about to.
func scheduled(pods []corev1.Pod) []corev1.Pod {
	var out []corev1.Pod
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			out = append(out, pods[i])
		}
	}
	return out
}

// starting says what keeps a pod from running; empty if it runs.
func starting(p *corev1.Pod, what string) (string, error) {
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		last := c.LastTerminationState.Terminated
		if c.RestartCount >= maxRestarts && last != nil {
			return "", fmt.Errorf("pod %s, the %s, keeps failing: %s\n  next: kubectl -n %s logs %s; delete the pod, and run this again", p.Name, what, strings.TrimSpace(last.Message), p.Namespace, p.Name)
		}
		if w := c.State.Waiting; w != nil && w.Message != "" && p.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("the %s to run: %s: %s", what, w.Reason, w.Message), nil
		}
		if c.State.Running == nil && p.Status.Phase == corev1.PodRunning {
			return "the " + what + " to run again", nil
		}
	}
	if p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) > 0 {
		return "", nil
	}
	for _, c := range p.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return fmt.Sprintf("the %s to run: %s", what, c.Message), nil
		}
	}
	return "the " + what + " to run", nil
}
