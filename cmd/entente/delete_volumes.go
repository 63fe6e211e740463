package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
)

// volumesFlag is whether a command deletes the volumes of what it ends.
type volumesFlag struct{ delete bool }

func (f *volumesFlag) add(cmd *cobra.Command, which string) {
	cmd.Flags().BoolVar(&f.delete, "delete-volumes", false, "First delete the volumes "+which+", with all that is on them; without a terminal it takes --yes, too")
}

// settle deletes the volumes of a cluster's claims that want selects, or says that they stay. again is the command that
// deletes them.
func (f *volumesFlag) settle(ctx context.Context, r *run, yes bool, again string, want func(storage.Volume) bool) error {
	if r.kube == nil {
		return nil
	}
	all, err := storage.Held(ctx, r.kube, want)
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
		stays = " stays, and so does what is on it"
	}
	// Those that are to be deleted are all named.
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
		r.note("to delete them: %s, while a contract lends storage of their class; or their provider does: kubectl get pvc -A -l entente.dev/kept-volume=true", again)
		return nil
	}
	return f.deleteAll(ctx, r, yes, all)
}

// deleteAll deletes volumes, if somebody says yes, and waits until they are gone.
func (f *volumesFlag) deleteAll(ctx context.Context, r *run, yes bool, all []storage.Volume) error {
	if err := storage.InUse(ctx, r.kube, all); err != nil {
		return fmt.Errorf("(%s) nothing was done: %w", r.label, err)
	}
	if !yes && !r.interactive {
		return exit.Usagef("nothing was done: nobody is there to confirm that %s are deleted, with all that is on them: add --yes", format.Count(len(all), "volume"))
	}
	if err := r.confirm(yes, fmt.Sprintf("Delete %s, with all that is on them, for good?", format.Count(len(all), "volume"))); err != nil {
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
	hint := "the deletion stays requested: it is carried out once a contract that lends storage of that class is in force and the provider answers; run this again to wait for it"
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

// peerOf is what this cluster calls the provider of a volume, or its ID.
func (c *cluster) peerOf(ctx context.Context, v storage.Volume) string {
	id := storage.Peer(v.PersistentVolume)
	if peer, err := c.find(ctx, id); err == nil && peer != nil {
		return format.ShortName(peer)
	}
	return id
}
