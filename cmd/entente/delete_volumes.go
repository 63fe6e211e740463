package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
)

// volumesFlag says whether a command also deletes the volumes of what it ends.
type volumesFlag struct{ delete bool }

func (f *volumesFlag) add(cmd *cobra.Command, which string) {
	cmd.Flags().BoolVar(&f.delete, "delete-volumes", false, "First delete the volumes "+which+", with all their data; without a terminal this needs --yes, too")
}

// apply deletes the volumes of a cluster's claims that want selects, or says that they stay. again is the command that
// deletes them.
func (f *volumesFlag) apply(ctx context.Context, r *run, yes bool, again string, want func(storage.Volume) bool) error {
	if r.kube == nil {
		return nil
	}
	all, err := storage.AtProviders(ctx, r.kube, want)
	switch {
	case apierrors.IsForbidden(err) && !f.delete:
		r.note("volumes at providers, if there are any, stay there; this user may not list them: kubectl get pv -l entente.dev/peer")
		return nil
	case err != nil:
		return fmt.Errorf("(%s) %w", r.label, err)
	case len(all) == 0:
		return nil
	}
	stays := ""
	if !f.delete {
		stays = " stays, with its data"
	}
	// All volumes that will be deleted are listed.
	named := all[:min(len(all), storage.MaxNamed)]
	if f.delete {
		named = all
	}
	for _, v := range named {
		r.note("at %s: volume %s%s", r.peerOf(ctx, v), v, stays)
	}
	if more := len(all) - len(named); more > 0 {
		r.note("and %d more volumes: kubectl get pv -l entente.dev/peer", more)
	}
	if !f.delete {
		r.note("pods with these claims wait until their namespace is offloaded there again, or the volume was moved here while it is: entente move volume CLAIM -n NAMESPACE --to home")
		r.note("to delete them: %s, while a contract grants storage of their class; or let their provider do it: kubectl get pvc -A -l %s=true", again, v1alpha1.LabelRetained)
		return nil
	}
	return f.deleteAll(ctx, r, yes, all)
}

// deleteAll deletes volumes, after a confirmation, and waits until they are gone.
func (f *volumesFlag) deleteAll(ctx context.Context, r *run, yes bool, all []storage.Volume) error {
	if err := storage.InUse(ctx, r.kube, all); err != nil {
		return fmt.Errorf("(%s) nothing was done: %w", r.label, err)
	}
	if !yes && !r.interactive {
		return exit.Usagef("nothing was done: without a terminal nobody can confirm that %s are deleted, with all their data: add --yes", format.Count(len(all), "volume"))
	}
	if err := r.confirm(yes, fmt.Sprintf("Delete %s, with all their data, for good?", format.Count(len(all), "volume"))); err != nil {
		return err
	}
	r.progress.Begin()
	var problems []error
	for _, v := range all {
		problems = append(problems, storage.Order(ctx, r.kube, v))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("(%s) %w", r.label, err)
	}
	hint := "the deletion stays requested: it is carried out once a contract that grants storage of that class is in force and the provider responds; run this again to wait for it"
	err := r.poll(ctx, r.cluster, hint, func(ctx context.Context) (bool, string, error) {
		left, err := storage.Left(ctx, r.kube, all)
		if err != nil || len(left) == 0 {
			return err == nil, "", err
		}
		return false, fmt.Sprintf("%s to be deleted, such as %s", format.Count(len(left), "volume"), left[0].Name), nil
	})
	if err != nil {
		return err
	}
	r.done("Deleted %s", format.Count(len(all), "volume"))
	return nil
}

// peerOf is this cluster's name for the provider of a volume, or the provider's ID.
func (c *cluster) peerOf(ctx context.Context, v storage.Volume) string {
	id := storage.Peer(v.PersistentVolume)
	if peer, err := c.find(ctx, id); err == nil && peer != nil {
		return format.ShortName(peer)
	}
	return id
}
