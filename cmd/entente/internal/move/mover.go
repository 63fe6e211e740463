package move

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	"github.com/entente-dev/entente/internal/volumecopy"
)

// Mover moves one volume. Fields are required.
type Mover struct {
	Kube kubernetes.Interface
	// Exec runs a command in a pod and returns what it prints.
	Exec func(ctx context.Context, namespace, pod, container string, command ...string) ([]byte, error)
	// Namespace and Claim say whose volume is moved.
	Namespace, Claim string

	owner *corev1.ConfigMap
}

// Find returns the record of a move that was started; nil without one.
func (m *Mover) Find(ctx context.Context) (*Record, error) {
	c, err := found(m.Kube.CoreV1().ConfigMaps(m.Namespace).Get(ctx, Name(m.Namespace, m.Claim), metav1.GetOptions{}))
	if m.owner = c; c == nil || err != nil {
		return nil, err
	}
	return readRecord(c)
}

// Begin writes the record of a move.
func (m *Mover) Begin(ctx context.Context, r *Record) error {
	data, err := r.data()
	if err != nil {
		return err
	}
	c := &corev1.ConfigMap{ObjectMeta: r.meta(r.name(), nil), Data: data}
	if m.owner, err = m.Kube.CoreV1().ConfigMaps(r.Namespace).Create(ctx, c, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// note changes the record, unless another writer did.
func (m *Mover) note(ctx context.Context, r *Record, change func(*Record)) error {
	change(r)
	c := m.owner.DeepCopy()
	var err error
	if c.Data, err = r.data(); err != nil {
		return err
	}
	if m.owner, err = m.Kube.CoreV1().ConfigMaps(r.Namespace).Update(ctx, c, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// Abort notes in the record that the move is aborted.
func (m *Mover) Abort(ctx context.Context, r *Record) error {
	return m.note(ctx, r, func(r *Record) { r.Aborted = true })
}

// found is an object; nil if it does not exist.
func found[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // that it is not there is an answer
	}
	return o, err
}

// Observe reads the objects of a move, and asks its pods for their progress.
func (m *Mover) Observe(ctx context.Context) (o Observed, err error) {
	if o.Record, err = m.Find(ctx); err != nil || o.Record == nil {
		return o, err
	}
	r, core := o.Record, m.Kube.CoreV1()
	var problems [7]error
	o.Claim, problems[0] = found(core.PersistentVolumeClaims(r.Namespace).Get(ctx, r.Claim, metav1.GetOptions{}))
	o.Temporary, problems[1] = found(core.PersistentVolumeClaims(r.Namespace).Get(ctx, r.name(), metav1.GetOptions{}))
	o.Source, problems[2] = found(core.PersistentVolumes().Get(ctx, r.Source, metav1.GetOptions{}))
	o.Sender, problems[3] = found(core.Pods(r.Namespace).Get(ctx, r.sender(), metav1.GetOptions{}))
	o.Receiver, problems[4] = found(core.Pods(r.Namespace).Get(ctx, r.receiver(), metav1.GetOptions{}))
	secret, err := found(core.Secrets(r.Namespace).Get(ctx, r.name(), metav1.GetOptions{}))
	service, err2 := found(core.Services(r.Namespace).Get(ctx, r.name(), metav1.GetOptions{}))
	problems[5], problems[6] = err, err2
	o.Prepared = secret != nil && service != nil
	if err := errors.Join(problems[:]...); err != nil {
		return o, err
	}
	name := r.Destination
	if name == "" && o.Temporary != nil {
		name = o.Temporary.Spec.VolumeName
	}
	if name != "" {
		if o.Destination, err = found(core.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})); err != nil {
			return o, err
		}
	}
	users, err := storage.Users(ctx, m.Kube, r.Namespace, r.Claim)
	if err != nil {
		return o, err
	}
	for i := range users {
		if users[i].Name != r.sender() {
			o.Users = append(o.Users, users[i])
		}
	}
	if r.Verified == nil && runs(o.Sender) && runs(o.Receiver) {
		o.Sent, o.Received = m.ask(ctx, o.Sender, false), m.ask(ctx, o.Receiver, false)
	}
	if r.Verified != nil && !r.Unmarked && runs(o.Receiver) {
		o.Received = m.ask(ctx, o.Receiver, false)
	}
	return o, nil
}

func runs(p *corev1.Pod) bool {
	return p != nil && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning
}

// ask asks a pod for its progress; nil if it does not respond.
func (m *Mover) ask(ctx context.Context, p *corev1.Pod, seal bool) *volumecopy.Status {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	command := []string{"/entented", "volume", "status", "--state=" + statePath}
	if seal {
		command = append(command, "--seal")
	}
	out, err := m.Exec(ctx, p.Namespace, p.Name, container, command...)
	if err != nil || len(out) > maxStatus {
		return nil
	}
	var s volumecopy.Status
	if json.NewDecoder(bytes.NewReader(out)).Decode(&s) != nil || s.Phase == "" {
		return nil
	}
	return &s
}

// Do takes a step.
func (m *Mover) Do(ctx context.Context, step Step, o Observed) error {
	err := m.do(ctx, step, o)
	// The next step first reads again what changed meanwhile.
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

func (m *Mover) do(ctx context.Context, step Step, o Observed) error {
	r, core := o.Record, m.Kube.CoreV1()
	switch step {
	case Prepare:
		return m.prepare(ctx, r)
	case MakeReceiver:
		_, err := core.Pods(r.Namespace).Create(ctx, r.pod(m.owner, string(m.owner.UID), "to", r.name(), r.To, "receive"), metav1.CreateOptions{})
		return err
	case MakeSender:
		_, err := core.Pods(r.Namespace).Create(ctx, r.pod(m.owner, string(m.owner.UID), "from", r.Claim, r.From, "send", "--address="+r.address()), metav1.CreateOptions{})
		return err
	case ReplaceReceiver, DropReceiver:
		return core.Pods(r.Namespace).Delete(ctx, o.Receiver.Name, uid(o.Receiver.UID))
	case ReplaceSender, DropSender:
		return core.Pods(r.Namespace).Delete(ctx, o.Sender.Name, uid(o.Sender.UID))
	case Lock:
		return core.PersistentVolumeClaims(r.Namespace).Delete(ctx, o.Claim.Name, uid(o.Claim.UID))
	case AddFinalizer, RemoveFinalizer:
		return m.finalizers(ctx, o.Claim, step == AddFinalizer)
	case DropTemporary:
		return core.PersistentVolumeClaims(r.Namespace).Delete(ctx, o.Temporary.Name, uid(o.Temporary.UID))
	case Seal:
		m.ask(ctx, o.Sender, true)
		return nil
	case Unmark:
		m.ask(ctx, o.Receiver, true)
		return nil
	case NoteDestination, NoteVerified, NoteUnmarked, NoteClaim:
		return m.note(ctx, r, func(r *Record) { noted(r, step, o) })
	case RestoreClaim:
		_, err := core.PersistentVolumeClaims(r.Namespace).Create(ctx, r.restored(o.Source), metav1.CreateOptions{})
		return err
	case Bind:
		_, err := core.PersistentVolumeClaims(r.Namespace).Create(ctx, r.restored(o.Destination), metav1.CreateOptions{})
		return err
	case Finish:
		return core.ConfigMaps(r.Namespace).Delete(ctx, m.owner.Name, uid(m.owner.UID))
	default:
		return m.volumes(ctx, step, o)
	}
}

// volumes takes a step that changes a volume.
func (m *Mover) volumes(ctx context.Context, step Step, o Observed) error {
	retain := corev1.PersistentVolumeReclaimRetain
	switch step {
	case Keep:
		for _, pv := range []*corev1.PersistentVolume{o.Source, o.Destination} {
			if pv != nil && !kept(pv) {
				if err := storage.SetPolicy(ctx, m.Kube, pv, retain); err != nil {
					return err
				}
			}
		}
		return nil
	case SetPolicy:
		return storage.SetPolicy(ctx, m.Kube, o.Destination, o.Record.DestinationPolicy)
	case SetSourcePolicy:
		return storage.SetPolicy(ctx, m.Kube, o.Source, o.Record.SourcePolicy)
	case Discard:
		return storage.SetPolicy(ctx, m.Kube, o.Destination, corev1.PersistentVolumeReclaimDelete)
	case DropSource:
		return storage.SetPolicy(ctx, m.Kube, o.Source, corev1.PersistentVolumeReclaimDelete)
	case Reserve:
		return m.reserve(ctx, o.Destination, o.Record)
	case RestoreVolume:
		return m.reserve(ctx, o.Source, o.Record)
	default: // nothing is to be done
		return nil
	}
}

func noted(r *Record, step Step, o Observed) {
	switch step {
	case NoteDestination:
		r.Destination, r.DestinationPolicy = o.Destination.Name, o.Destination.Spec.PersistentVolumeReclaimPolicy
	case NoteVerified:
		r.Verified = &o.Sent.Sum
	case NoteUnmarked:
		r.Unmarked = true
	case NoteClaim:
		r.UID = o.Claim.UID
	default:
	}
}

func uid(u types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &u}}
}

// finalizers adds the finalizer to a claim, so that it stays when it is deleted, or removes it.
func (m *Mover) finalizers(ctx context.Context, claim *corev1.PersistentVolumeClaim, stay bool) error {
	all := slices.DeleteFunc(slices.Clone(claim.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerMove })
	if stay {
		all = append(all, v1alpha1.FinalizerMove)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "finalizers": all}})
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = m.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// prepare creates the missing ones of secret, Service and claim.
func (m *Mover) prepare(ctx context.Context, r *Record) error {
	core := m.Kube.CoreV1()
	_, err := core.Secrets(r.Namespace).Create(ctx, r.secret(m.owner), metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		_, err = core.Services(r.Namespace).Create(ctx, r.service(m.owner), metav1.CreateOptions{})
	}
	if err == nil || apierrors.IsAlreadyExists(err) {
		_, err = core.PersistentVolumeClaims(r.Namespace).Create(ctx, r.temporary(m.owner), metav1.CreateOptions{})
	}
	return err
}

// reserve reserves a volume without a claim for a claim of the moved name.
func (m *Mover) reserve(ctx context.Context, pv *corev1.PersistentVolume, r *Record) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion},
		"spec": map[string]any{"claimRef": map[string]any{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": r.Namespace, "name": r.Claim, "uid": nil, "resourceVersion": nil,
		}},
	})
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = m.Kube.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
