package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/entente-dev/entente/internal/volumecopy"
)

const (
	shop   = "shop"
	data   = "data-db-0"
	source = "pv-old"
)

// sim is a cluster with the controllers that matter to a move: those that bind claims and protect those
// in use, a provisioner, a StatefulSet of one pod, db-0, and the two pods of a copy. Each volume
// has a number, which the StatefulSet's pod raises while it runs.
type sim struct {
	t       *testing.T
	r       *rand.Rand
	kube    *fake.Clientset
	uids    int
	numbers map[string]int
	last    int // the highest number that was written
	scaled  bool
	// marked are the volumes that have the marker of the copy, or that nothing wrote to yet.
	marked map[string]bool
	// sender and receiver are the processes in the two pods, and connection is how far they are over the
	// current connection.
	sender, receiver process
	connection       connection
	quiet            bool // nothing is lost or killed any longer
	history          []string
}

// process is one side of a copy, as package volumecopy has it.
type process struct {
	pod    types.UID // whose process it is, and whose seal
	sealed bool      // survives the process, not the pod
	passes int       // copies since it was sealed
	is     volumecopy.Status
}

// connection is what was done over a connection: nothing may be, either side may be killed after each step, and
// the next connection begins again.
type connection int

const (
	none connection = iota
	connected
	writing // the destination has a part of what is copied
	copied
	read
	compared // the sender knows that both are equal
	done     // the receiver knows it, too
	idle     // the sender knows that the receiver knows it
)

func newSim(t *testing.T, r *rand.Rand, policy corev1.PersistentVolumeReclaimPolicy) *sim {
	s := &sim{t: t, r: r, numbers: map[string]int{source: 1}, marked: map[string]bool{}, last: 1}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	// The other one tracks field managers, and takes ten times as long.
	s.kube = fake.NewSimpleClientset(

		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: source, UID: "pv-1"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, PersistentVolumeReclaimPolicy: policy, StorageClassName: "standard",
				ClaimRef: &corev1.ObjectReference{Namespace: shop, Name: data, UID: "claim-1"},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: data, UID: "claim-1", Labels: map[string]string{"app": "db"}},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: source, StorageClassName: new("standard"), Resources: corev1.VolumeResourceRequirements{Requests: size}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
	)
	s.kube.PrependReactor("create", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		o := a.(ktesting.CreateAction).GetObject().(metav1.Object)
		s.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uids)))
		return false, nil, nil
	})
	for _, kind := range []string{"persistentvolumeclaims", "pods"} {
		s.kube.PrependReactor("delete", kind, func(a ktesting.Action) (bool, runtime.Object, error) {
			d := a.(ktesting.DeleteAction)
			o, err := s.kube.Tracker().Get(a.GetResource(), a.GetNamespace(), d.GetName())
			if err != nil {
				return true, nil, err
			}
			m := o.(metav1.Object)
			if p := d.GetDeleteOptions().Preconditions; p == nil || *p.UID != m.GetUID() {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), d.GetName(), errors.New("another UID"))
			}
			// Both are deleted when the controllers remove the finalizers.
			m.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1e9, 0)})
			return true, nil, s.kube.Tracker().Update(a.GetResource(), o, a.GetNamespace())
		})
	}
	return s
}

func (s *sim) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\nafter %q", err, s.history)
	}
}

func (s *sim) claims() []corev1.PersistentVolumeClaim {
	list, err := s.kube.CoreV1().PersistentVolumeClaims(shop).List(s.t.Context(), metav1.ListOptions{})
	s.ok(err)
	return list.Items
}

func (s *sim) pods() []corev1.Pod {
	list, err := s.kube.CoreV1().Pods(shop).List(s.t.Context(), metav1.ListOptions{})
	s.ok(err)
	return list.Items
}

func (s *sim) pod(name string) *corev1.Pod {
	p, err := found(s.kube.CoreV1().Pods(shop).Get(s.t.Context(), name, metav1.GetOptions{}))
	s.ok(err)
	return p
}

func (s *sim) volume(name string) *corev1.PersistentVolume {
	pv, err := found(s.kube.CoreV1().PersistentVolumes().Get(s.t.Context(), name, metav1.GetOptions{}))
	s.ok(err)
	return pv
}

func (s *sim) update(o runtime.Object) {
	s.t.Helper()
	switch o := o.(type) {
	case *corev1.Pod:
		s.ok(s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), o, shop))
	case *corev1.PersistentVolume:
		s.ok(s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), o, ""))
	case *corev1.PersistentVolumeClaim:
		s.ok(s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), o, shop))
	}
}

func (s *sim) remove(kind, namespace, name string) {
	s.t.Helper()
	s.ok(s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource(kind), namespace, name))
}

func claimOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// used says whether a pod that was scheduled keeps a claim.
func (s *sim) used(claim string) bool {
	return slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return claimOf(&p) == claim && p.Spec.NodeName != "" && !ended(&p) })
}

// reconcile lets each controller do one thing.
func (s *sim) reconcile() {
	for _, p := range s.pods() {
		s.settlePod(&p)
	}
	for _, c := range s.claims() {
		s.settleClaim(&c)
	}
	volumes, err := s.kube.CoreV1().PersistentVolumes().List(s.t.Context(), metav1.ListOptions{})
	s.ok(err)
	for _, pv := range volumes.Items {
		s.settleVolume(&pv)
	}
	// The StatefulSet's controller.
	db := s.pod("db-0")
	switch {
	case s.scaled && db == nil:
		if !slices.ContainsFunc(s.claims(), func(c corev1.PersistentVolumeClaim) bool { return c.Name == data }) {
			_, err := s.kube.CoreV1().PersistentVolumeClaims(shop).Create(s.t.Context(), &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: data}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("standard")},
			}, metav1.CreateOptions{})
			s.ok(err)
			s.history = append(s.history, "StatefulSet makes the claim")
		}
		_, err := s.kube.CoreV1().Pods(shop).Create(s.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "db-0"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: data},
			}}}},
		}, metav1.CreateOptions{})
		s.ok(err)
	case !s.scaled && db != nil && db.DeletionTimestamp == nil:
		s.ok(s.kube.CoreV1().Pods(shop).Delete(s.t.Context(), "db-0", uid(db.UID)))
	}
}

func (s *sim) settlePod(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		s.remove("pods", shop, p.Name)
		return
	}
	if p.Spec.NodeName == "" {
		// A claim that is being deleted keeps its pods from being scheduled, like a missing one.
		for _, c := range s.claims() {
			if c.Name == claimOf(p) && c.DeletionTimestamp == nil {
				p.Spec.NodeName = "node"
				s.update(p)
			}
		}
		return
	}
	for _, c := range s.claims() {
		if c.Name != claimOf(p) || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		if p.Status.Phase == "" {
			p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			s.update(p)
		}
		if p.Name == "db-0" && p.Status.Phase == corev1.PodRunning {
			s.write(c.Spec.VolumeName)
		}
	}
}

// write is the work of db-0: it reads what was written last, and writes more.
func (s *sim) write(volume string) {
	if s.numbers[volume] != s.last {
		s.t.Fatalf("db-0 finds %d on %s, and %d was written last\nafter %q", s.numbers[volume], volume, s.last, s.history)
	}
	s.last++
	s.numbers[volume] = s.last
}

func (s *sim) settleClaim(c *corev1.PersistentVolumeClaim) {
	if c.DeletionTimestamp != nil {
		if !s.used(c.Name) && !hasFinalizer(c) {
			s.remove("persistentvolumeclaims", shop, c.Name)
		}
		return
	}
	if c.Status.Phase == corev1.ClaimBound {
		return
	}
	volumes, err := s.kube.CoreV1().PersistentVolumes().List(s.t.Context(), metav1.ListOptions{})
	s.ok(err)
	for _, pv := range volumes.Items {
		ref := pv.Spec.ClaimRef
		if ref != nil && ref.Namespace == shop && ref.Name == c.Name && (ref.UID == "" || ref.UID == c.UID) && (c.Spec.VolumeName == "" || c.Spec.VolumeName == pv.Name) {
			ref.UID, pv.Status.Phase = c.UID, corev1.VolumeBound
			c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
			s.update(&pv)
			s.update(c)
			return
		}
	}
	if c.Spec.VolumeName == "" && s.used(c.Name) { // the provisioner
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + string(c.UID)},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: *c.Spec.StorageClassName,
				ClaimRef: &corev1.ObjectReference{Namespace: shop, Name: c.Name, UID: c.UID},
			},
		}
		_, err := s.kube.CoreV1().PersistentVolumes().Create(s.t.Context(), pv, metav1.CreateOptions{})
		s.ok(err)
		s.numbers[pv.Name], s.marked[pv.Name] = 0, true
	}
}

func (s *sim) settleVolume(pv *corev1.PersistentVolume) {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		pv.Status.Phase = corev1.VolumeAvailable
		s.update(pv)
		return
	}
	if slices.ContainsFunc(s.claims(), func(c corev1.PersistentVolumeClaim) bool { return c.UID == ref.UID }) {
		return
	}
	pv.Status.Phase = corev1.VolumeReleased
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		s.remove("persistentvolumes", "", pv.Name)
		delete(s.numbers, pv.Name)
		s.history = append(s.history, pv.Name+" is deleted")
		return
	}
	s.update(pv)
}

// exec asks a process for its progress, and may seal it.
func (s *sim) exec(_ context.Context, _, name, _ string, command ...string) ([]byte, error) {
	if s.r.IntN(5) == 0 {
		return nil, errors.New("no answer")
	}
	from, to := s.copy()
	side := &s.receiver
	if name == Name(shop, data)+"-from" {
		side = &s.sender
	}
	if side == &s.sender && from == "" || side == &s.receiver && to == "" {
		return nil, errors.New("no pod")
	}
	side.sealed = side.sealed || slices.Contains(command, "--seal")
	out, err := json.Marshal(side.is)
	for range s.r.IntN(6) { // it may lie a while until the command acts on it
		s.work()
	}
	return out, err
}

// restart begins a process again, in the same pod or another, if there is one.
func (s *sim) restart(side *process, p *corev1.Pod, first volumecopy.Phase) {
	uid := types.UID("")
	if p != nil && p.Status.Phase == corev1.PodRunning {
		uid = p.UID
	}
	*side = process{pod: uid, sealed: side.sealed && side.pod == uid, is: volumecopy.Status{Phase: first}}
	s.connection = none
}

// copy returns the volumes that the two processes mount; it is empty for one that does not run.
func (s *sim) copy() (from, to string) {
	if p := s.pod(Name(shop, data) + "-from"); p == nil || p.UID != s.sender.pod || p.Status.Phase != corev1.PodRunning {
		s.restart(&s.sender, p, volumecopy.Connecting)
	}
	if p := s.pod(Name(shop, data) + "-to"); p == nil || p.UID != s.receiver.pod || p.Status.Phase != corev1.PodRunning {
		s.restart(&s.receiver, p, volumecopy.Waiting)
	}
	if s.sender.pod != "" {
		from = s.mounted(Name(shop, data) + "-from")
	}
	if s.receiver.pod != "" {
		to = s.mounted(Name(shop, data) + "-to")
	}
	return from, to
}

// work lets the two processes do one thing: copy, wait until the sender is sealed, copy, compare, and say so to each
// other. What begins sealed compares first.
func (s *sim) work() {
	from, to := s.copy()
	switch {
	case s.quiet || s.r.IntN(10) > 0:
	case s.r.IntN(2) == 0:
		s.restart(&s.sender, s.pod(Name(shop, data)+"-from"), volumecopy.Connecting)
		s.history = append(s.history, "the sender is killed")
	default:
		s.restart(&s.receiver, s.pod(Name(shop, data)+"-to"), volumecopy.Waiting)
		s.history = append(s.history, "the receiver is killed")
	}
	if to != "" && s.receiver.sealed {
		if s.connection == writing {
			s.t.Fatalf("the receiver is sealed while it writes\nafter %q", s.history)
		}
		delete(s.marked, to)
		s.receiver.is.Sealed, s.receiver.is.Phase, s.connection = true, volumecopy.Finished, none
		return
	}
	if from == "" || to == "" {
		return
	}
	sum := volumecopy.Sum{Digest: fmt.Sprint(s.numbers[from])}
	switch s.connection {
	case none:
		s.connection, s.sender.is.Phase = connected, volumecopy.Connecting
		if s.sender.sealed {
			s.sender.is.Sealed, s.connection = true, copied
		}
	case connected:
		s.connection, s.sender.is.Phase = copied, volumecopy.Copied
		if s.marked[to] {
			s.connection, s.sender.is.Phase, s.receiver.is.Phase, s.numbers[to] = writing, volumecopy.Copying, volumecopy.Copying, -1
		}
	case writing:
		s.connection, s.numbers[to], s.sender.is.Phase, s.receiver.is.Phase = copied, s.numbers[from], volumecopy.Copied, volumecopy.Copied
	case copied:
		switch {
		case s.sender.sealed && s.sender.is.Sealed:
			s.connection, s.sender.is.Phase, s.receiver.is.Phase = read, volumecopy.Reading, volumecopy.Reading
		case s.sender.sealed: // since it copied, pods may have written
			s.sender.is.Sealed, s.connection = true, connected
		}
	case read:
		s.connection, s.sender.is.Sum, s.receiver.is.Sum = compared, sum, volumecopy.Sum{Digest: fmt.Sprint(s.numbers[to])}
		if s.numbers[from] != s.numbers[to] {
			if s.sender.passes++; s.sender.passes > 4 {
				s.t.Fatalf("the copy stays %d and the source is %d\nafter %q", s.numbers[to], s.numbers[from], s.history)
			}
			s.connection = connected
		}
	case compared:
		s.connection, s.receiver.is.Phase = done, volumecopy.Verified
	case done:
		s.connection, s.sender.is.Phase = idle, volumecopy.Verified
	case idle:
	}
}

// mounted is the volume that a pod of a copy mounts, if it runs.
func (s *sim) mounted(pod string) string {
	p := s.pod(pod)
	if p == nil || p.Status.Phase != corev1.PodRunning {
		return ""
	}
	for _, c := range s.claims() {
		if c.Name == claimOf(p) {
			return c.Spec.VolumeName
		}
	}
	return ""
}

// chance makes random events happen.
func (s *sim) chance() {
	switch s.r.IntN(12) {
	case 0:
		s.scaled = !s.scaled
		s.history = append(s.history, fmt.Sprintf("scaled %t", s.scaled))
	case 1, 2:
		side := []string{"-from", "-to"}[s.r.IntN(2)]
		if p := s.pod(Name(shop, data) + side); p != nil {
			s.history = append(s.history, side+" is lost")
			if s.r.IntN(2) == 0 {
				s.remove("pods", shop, p.Name)
				return
			}
			p.Status.Phase = corev1.PodFailed
			s.update(p)
		}
	}
}

// run runs the command for some steps; it may be killed after each. done says that nothing was left
// to do.
func (s *sim) run(steps int, quiet bool) (done bool, err error) {
	m := &Mover{Kube: s.kube, Exec: s.exec, Namespace: shop, Claim: data}
	s.quiet = quiet
	for range steps {
		if !quiet {
			s.chance()
		}
		s.reconcile()
		is, err := m.Observe(s.t.Context())
		s.ok(err)
		step, _, err := Next(is)
		if err != nil {
			return false, err
		}
		if step == Done {
			return true, nil
		}
		if step == Wait {
			continue
		}
		s.history = append(s.history, string(step))
		if err := m.Do(s.t.Context(), step, is); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (s *sim) begin(deleteSource bool) {
	c, err := s.kube.CoreV1().PersistentVolumeClaims(shop).Get(s.t.Context(), data, metav1.GetOptions{})
	s.ok(err)
	m := &Mover{Kube: s.kube, Exec: s.exec, Namespace: shop, Claim: data}
	s.ok(m.Begin(s.t.Context(), &Record{
		Namespace: shop, Claim: data, UID: c.UID, Labels: c.Labels, Spec: c.Spec, Source: source, SourcePolicy: s.volume(source).Spec.PersistentVolumeReclaimPolicy,
		To: "p", ToName: "office", Class: "entente", Image: "i", DeleteSource: deleteSource,
	}))
}

// calm ends everything that happens besides the move, and removes pods that are in its way.
func (s *sim) calm() {
	s.scaled = false
	for range 3 {
		s.reconcile()
	}
}

// TestMovesLoseNoData moves a volume while the command is killed at any moment, pods of the copy
// are lost, their processes are killed between any two steps, and a StatefulSet is scaled up and down. Whenever its pod runs it finds what it wrote last; in the
// end, once no pod uses it, the volume is moved, or where it was if the move was aborted.
func TestMovesLoseNoData(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		policy := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}[r.IntN(2)]
		s := newSim(t, r, policy)
		drop := r.IntN(2) == 0
		s.begin(drop)
		done := false
		for range r.IntN(12) {
			if done, _ = s.run(r.IntN(15), false); done {
				break
			}
			s.history = append(s.history, "killed")
		}
		s.calm()
		aborted := false
		if m := (&Mover{Kube: s.kube, Namespace: shop, Claim: data}); !done && r.IntN(3) == 0 {
			record, err := m.Find(t.Context())
			s.ok(err)
			if aborted = record != nil && record.Verified == nil; aborted {
				s.ok(m.Abort(t.Context(), record))
				s.history = append(s.history, "given up")
			}
		}
		if !done {
			var err error
			if done, err = s.run(400, true); err != nil || !done {
				t.Fatalf("seed %d: done %t, %v\nafter %q", seed, done, err, s.history)
			}
		}
		s.reconcile()
		s.reconcile()
		s.finished(seed, aborted, drop, policy)
		s.scaled = true // db-0 checks for itself
		for range 5 {
			s.reconcile()
		}
		if p := s.pod("db-0"); p == nil || p.Status.Phase != corev1.PodRunning {
			t.Fatalf("seed %d: db-0 does not run\nafter %q", seed, s.history)
		}
	}
}

// finished checks the objects after a move.
func (s *sim) finished(seed uint64, aborted, drop bool, policy corev1.PersistentVolumeReclaimPolicy) {
	claims, pods := s.claims(), s.pods()
	if len(claims) != 1 || claims[0].Name != data || claims[0].Status.Phase != corev1.ClaimBound || len(pods) != 0 {
		s.t.Fatalf("seed %d: there are claims %v, pods %v\nafter %q", seed, claims, pods, s.history)
	}
	// The StatefulSet's controller may have been first, for a volume that was reserved already.
	if !slices.Contains(s.history, "StatefulSet makes the claim") && claims[0].Labels["app"] != "db" {
		s.t.Fatalf("seed %d: the claim's labels are %v\nafter %q", seed, claims[0].Labels, s.history)
	}
	has := s.volume(claims[0].Spec.VolumeName)
	want := corev1.PersistentVolumeReclaimDelete
	if aborted {
		want = policy
	}
	if has == nil || (has.Name == source) != aborted || has.Spec.PersistentVolumeReclaimPolicy != want {
		s.t.Fatalf("seed %d: the claim has %v, aborted %t\nafter %q", seed, has, aborted, s.history)
	}
	if !aborted && s.marked[has.Name] {
		s.t.Fatalf("seed %d: the marker is left on %s\nafter %q", seed, has.Name, s.history)
	}
	if old := s.volume(source); (old == nil) != (drop && !aborted) {
		s.t.Fatalf("seed %d: the old volume is %v\nafter %q", seed, old, s.history)
	}
	maps, err := s.kube.CoreV1().ConfigMaps(shop).List(s.t.Context(), metav1.ListOptions{})
	s.ok(err)
	if len(maps.Items) > 0 {
		s.t.Fatalf("seed %d: records are left: %v", seed, maps.Items)
	}
}
