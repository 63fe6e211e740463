package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/move"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// atHome is the name of this cluster as the destination of a move.
const atHome = "home"

type moveFlags struct {
	namespace, to, class, image string
	user                        int64
	deleteSource, dryRun, abort bool
	timeout                     flags.Timeout
}

func (a *app) moveCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "move", Short: "Move data to other clusters"}, a.moveVolumeCommand())
}

func (a *app) moveVolumeCommand() *cobra.Command {
	var f moveFlags
	cmd := a.command(&cobra.Command{Use: "volume CLAIM", Short: "Copy the volume of a claim to another cluster, and bind the claim to the copy"}, func(ctx context.Context, r *run) error {
		if (f.to == "") == !f.abort || f.user < -1 {
			return exit.Usagef("name the cluster to move to with --to, home for this one, or abort a move with --abort; see `%s --help`", r.path)
		}
		if r.kube == nil {
			return errors.New("this command needs access to the cluster's API server")
		}
		if f.namespace == "" {
			var err error
			if f.namespace, _, err = a.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
				return fmt.Errorf("read kubeconfig: %w", err)
			}
		}
		ctx, cancel := f.timeout.Bound(ctx)
		defer cancel()
		return (&moving{run: r, flags: &f, Mover: move.Mover{Kube: r.kube, Exec: r.exec, Namespace: f.namespace, Claim: r.argv[0]}}).do(ctx)
	})
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "The namespace of the claim (default: the kubeconfig's)")
	a.completesFlag(cmd, "namespace", namespaceNames)
	cmd.Flags().StringVar(&f.to, "to", "", "The cluster to move to: a peer, by its name or cluster ID, or home, this one")
	a.completesFlag(cmd, "to", peerNames)
	cmd.Flags().StringVar(&f.class, "storage-class", "", "The storage class of the new volume (default: the claim's, or entente)")
	cmd.Flags().StringVar(&f.image, "image", "", "The image of the two pods, which both clusters have to be able to pull (default: the agent's)")
	cmd.Flags().Int64Var(&f.user, "user", -1, "The user and group of the pods, for namespaces in which none may run as root; all files have to belong to them (default: root)")
	cmd.Flags().BoolVar(&f.deleteSource, "delete-source", false, "Delete the old volume once the claim has the new one")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "Only say what would be done")
	cmd.Flags().BoolVar(&f.abort, "abort", false, "Abort a move that was not verified yet: the claim gets its old volume back, and the new one is deleted")
	f.timeout.Add(cmd.Flags(), 24*time.Hour, "How long to wait for everything together")
	return cmd
}

// moving is one run of the command.
type moving struct {
	*run
	move.Mover
	flags *moveFlags
}

func (m *moving) do(ctx context.Context) error {
	record, err := m.Find(ctx)
	if err != nil {
		return m.at(err)
	}
	switch {
	case m.flags.abort && record == nil:
		m.done("The volume of claim %s/%s is not being moved: nothing to do", m.Namespace, m.Claim)
		return nil
	case m.flags.abort && record.Verified != nil:
		return exit.Usagef("the new volume was verified already, and the claim is about to be bound to it: let the move finish, then move it back")
	case m.flags.abort:
		err = m.Abort(ctx, record)
	case record == nil:
		if record, err = m.begin(ctx); record == nil {
			return err
		}
	default:
		err = m.resumes(ctx, record)
	}
	if err != nil {
		return m.at(err)
	}
	if err := m.steps(ctx, record); err != nil {
		m.next("Nothing is lost. To continue, run the same command again; to abort:\n  entente move volume %s -n %s --abort", m.Claim, m.Namespace)
		return err
	}
	return nil
}

// at adds to an error the cluster where it happened.
func (m *moving) at(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*exit.Error](err); ok {
		return err
	}
	return fmt.Errorf("(%s) %w", m.label, err)
}

// resumes reports that an earlier move continues, if its destination is the same cluster.
func (m *moving) resumes(ctx context.Context, record *move.Record) error {
	to, _, err := m.destination(ctx)
	if err != nil {
		return err
	}
	if record.Aborted {
		return exit.Usagef("this move is being aborted: finish that first, with --abort")
	}
	if record.To != to {
		return exit.Usagef("claim %s/%s is being moved to %s: let that end, or abort it with --abort", m.Namespace, m.Claim, record.ToName)
	}
	m.done("Continuing the move of claim %s/%s to %s", m.Namespace, m.Claim, record.ToName)
	return nil
}

// steps takes one step after another until none is left.
func (m *moving) steps(ctx context.Context, record *move.Record) error {
	m.progress.Follow = nil // it reports changes of peers, not of pods
	hint := "see " + fmt.Sprintf("kubectl -n %s get pods,pvc -l %s=%s", m.Namespace, move.LabelMove, move.ID(m.Namespace, m.Claim)) + ", and run this again to continue"
	last := record
	err := m.poll(ctx, m.cluster, hint, func(ctx context.Context) (bool, string, error) {
		for {
			is, err := m.Observe(ctx)
			if err != nil {
				return false, "", m.at(err)
			}
			if is.Record != nil {
				last = is.Record
			}
			step, waiting, err := move.Next(is)
			if err != nil || step == move.Wait {
				return false, waiting, m.at(err)
			}
			if step == move.Done {
				return true, "", nil
			}
			if err := m.Do(ctx, step, is); err != nil {
				return false, "", m.at(err)
			}
			m.report(step, is)
		}
	})
	if err != nil {
		return err
	}
	return m.finish(last)
}

// report prints a step that people care about.
func (m *moving) report(step move.Step, is move.Observed) {
	r := is.Record
	switch step {
	case move.Prepare:
		m.done("Asked for a volume of storage class %s at %s", r.Class, r.ToName)
	case move.NoteDestination:
		m.done("The new volume is %s", is.Destination.Name)
	case move.MakeSender:
		m.done("Copying volume %s", r.Source)
	case move.ReplaceReceiver, move.ReplaceSender:
		m.note("a pod of the copy ended; it is replaced")
	case move.Lock:
		m.done("Copied; claim %s is locked, and pods that would use it wait", r.Claim)
	case move.RestoreClaim:
		m.done("Claim %s is bound to its old volume again", r.Claim)
	case move.NoteVerified:
		m.done("Both sides read the same: %s in %d files, directories and links, %s", move.Bytes(is.Sent.Sum.Bytes), is.Sent.Sum.Files, is.Sent.Sum.Digest)
	case move.Bind:
		m.done("Claim %s is bound to volume %s", r.Claim, r.Destination)
	default:
	}
}

// finish prints the outcome.
func (m *moving) finish(r *move.Record) error {
	if r.Aborted {
		m.done("Aborted: claim %s/%s has volume %s, as before", r.Namespace, r.Claim, r.Source)
		return nil
	}
	m.done("Moved the volume of claim %s/%s to %s", r.Namespace, r.Claim, r.ToName)
	if !r.DeleteSource {
		m.note("the old volume stays, with its data; to delete it: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Delete\"}}'", r.Source)
	}
	if !m.output.Structured() {
		return nil
	}
	v, err := printer.PlainValue(r)
	if err != nil {
		return err
	}
	return m.writeValue(v)
}

// destination is the ID of the destination cluster, empty for this one, and its name.
func (m *moving) destination(ctx context.Context) (id, name string, err error) {
	if m.flags.to == atHome {
		return "", atHome, nil
	}
	peer, err := m.find(ctx, m.flags.to)
	if err != nil {
		return "", "", err
	}
	if peer == nil {
		return "", "", exit.Usagef("no peer %s is known: name one of `entente info peer`, or home", m.flags.to)
	}
	return peer.GetClusterId(), format.ShortName(peer), nil
}

// begin checks that a volume can be moved, and writes the record. It writes none if the volume is
// where it should be already, or in a dry run.
func (m *moving) begin(ctx context.Context) (*move.Record, error) {
	claim, err := m.Kube.CoreV1().PersistentVolumeClaims(m.Namespace).Get(ctx, m.Claim, metav1.GetOptions{})
	if err != nil {
		return nil, m.at(fmt.Errorf("get claim %s/%s: %w", m.Namespace, m.Claim, err))
	}
	r := &move.Record{Namespace: m.Namespace, Claim: m.Claim, DeleteSource: m.flags.deleteSource}
	if r.To, r.ToName, err = m.destination(ctx); err != nil {
		return nil, err
	}
	if err := m.source(ctx, r, claim); err != nil {
		return nil, m.at(err)
	}
	if r.From == r.To {
		m.done("The volume of claim %s/%s is at %s: nothing to do", m.Namespace, m.Claim, r.ToName)
		return nil, nil //nolint:nilnil // there is nothing to record
	}
	for _, check := range []func(context.Context, *move.Record, *corev1.PersistentVolumeClaim) error{m.class, m.offloaded, m.pods, m.unused} {
		if err := check(ctx, r, claim); err != nil {
			return nil, m.at(err)
		}
	}
	if m.flags.dryRun {
		m.note("would copy volume %s (%s), which is at %s, to a new one of storage class %s at %s, compare both, bind claim %s to that, and %s the old one",
			r.Source, r.Spec.Resources.Requests.Storage(), cmp.Or(r.From, atHome), r.Class, r.ToName, r.Claim, map[bool]string{true: "delete", false: "keep"}[r.DeleteSource])
		return nil, nil //nolint:nilnil // there is nothing to record
	}
	return r, m.at(m.Begin(ctx, r))
}

// source reads the claim and the volume that are moved.
func (m *moving) source(ctx context.Context, r *move.Record, claim *corev1.PersistentVolumeClaim) error {
	switch {
	case claim.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s/%s is being deleted", m.Namespace, m.Claim)
	case claim.Status.Phase != corev1.ClaimBound:
		return fmt.Errorf("claim %s/%s has no volume yet", m.Namespace, m.Claim)
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return fmt.Errorf("claim %s/%s is of a block device, which is not copied", m.Namespace, m.Claim)
	case metav1.GetControllerOf(claim) != nil && metav1.GetControllerOf(claim).Kind == "Pod":
		return fmt.Errorf("claim %s/%s belongs to one pod, and is deleted with it", m.Namespace, m.Claim)
	}
	pv, err := m.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get volume %s: %w", claim.Spec.VolumeName, err)
	}
	r.UID, r.Labels, r.Annotations, r.Spec = claim.UID, claim.Labels, move.Lasting(claim.Annotations), *claim.Spec.DeepCopy()
	r.From, r.Source, r.SourcePolicy = storage.Peer(pv), pv.Name, pv.Spec.PersistentVolumeReclaimPolicy
	size := r.Spec.Resources.Requests[corev1.ResourceStorage]
	if has := pv.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(size) > 0 {
		size = has
	}
	r.Spec.Resources = corev1.VolumeResourceRequirements{Requests: map[corev1.ResourceName]resource.Quantity{corev1.ResourceStorage: size}}
	return nil
}

// class chooses the storage class of the new volume.
func (m *moving) class(ctx context.Context, r *move.Record, claim *corev1.PersistentVolumeClaim) error {
	get := func(name string) (ours bool, home string, err error) {
		c, err := m.Kube.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", fmt.Errorf("get storage class %s: %w", name, err)
		}
		return c.Provisioner == v1alpha1.VolumeDriver, c.Parameters["homeClass"], nil
	}
	r.Class = m.flags.class
	if own := claim.Spec.StorageClassName; r.Class == "" && own != nil {
		if ours, _, err := get(*own); ours || err != nil && !apierrors.IsNotFound(err) {
			r.Class = *own
		}
	}
	r.Class = cmp.Or(r.Class, "entente")
	ours, home, err := get(r.Class)
	switch {
	case err != nil:
		return err
	case r.To != "" && !ours:
		return exit.Usagef("volumes of storage class %s are in this cluster: name one whose provisioner is %s with --storage-class", r.Class, v1alpha1.VolumeDriver)
	case r.To == "" && ours && home == "":
		return exit.Usagef("storage class %s names no class for volumes in this cluster: name one of this cluster's with --storage-class (or install the chart with storage.homeClass)", r.Class)
	}
	return nil
}

// offloaded checks that pods of the namespace may run where the volumes are.
func (m *moving) offloaded(ctx context.Context, r *move.Record, _ *corev1.PersistentVolumeClaim) error {
	all, err := m.offloadings(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(o *ententev1.Offloading) bool { return format.Short(o.GetNamespace()) == r.Namespace })
	for _, id := range []string{r.From, r.To} {
		if id == "" {
			continue
		}
		peer, err := m.find(ctx, id)
		if err != nil {
			return err
		}
		if peer == nil {
			return fmt.Errorf("cluster %s, which has the volume, is no longer known here", id)
		}
		name := format.ShortName(peer)
		ready := at >= 0 && all[at].GetPodStrategy() != string(v1alpha1.StrategyLocal) && slices.ContainsFunc(all[at].GetClusters(), func(c *ententev1.OffloadingInCluster) bool {
			return format.Short(c.GetPeer()) == name && c.GetState() == v1alpha1.OffloadingReady
		})
		if !ready {
			return fmt.Errorf("pods of namespace %s cannot run at %s, as they have to for a copy\n  next: entente offload namespace %s; see `entente offloadings`", r.Namespace, name, r.Namespace)
		}
	}
	return nil
}

// pods returns the image of the copy's pods, and their user.
func (m *moving) pods(ctx context.Context, r *move.Record, _ *corev1.PersistentVolumeClaim) error {
	if m.flags.user >= 0 {
		r.User = &m.flags.user
	}
	if r.Image = m.flags.image; r.Image != "" {
		return nil
	}
	agents, err := m.Kube.CoreV1().Pods(m.app.namespace).List(ctx, metav1.ListOptions{LabelSelector: client.AgentSelector})
	if err != nil {
		return fmt.Errorf("find the agent's image: %w", err)
	}
	for i := range agents.Items {
		for _, c := range agents.Items[i].Spec.Containers {
			if r.Image = c.Image; strings.TrimSpace(r.Image) != "" {
				return nil
			}
		}
	}
	return errors.New("there is no agent whose image could be used: name one with --image")
}

// unused returns an error if pods use the volume.
func (m *moving) unused(ctx context.Context, _ *move.Record, _ *corev1.PersistentVolumeClaim) error {
	users, err := storage.Users(ctx, m.Kube, m.Namespace, m.Claim)
	if err != nil || len(users) == 0 {
		return err
	}
	return fmt.Errorf("pods use claim %s/%s: %s\n  next: scale their controller down, or delete the pods, and run this again", m.Namespace, m.Claim, storage.Names(users))
}
