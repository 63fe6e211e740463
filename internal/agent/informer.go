package agent

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// onChange has changed called when an object of a kind comes, goes, or changes so that
// it matters.
func onChange(ctx context.Context, informers cache.Informers, kind ctrlclient.Object, matters func(before, after any) bool, changed func()) error {
	informer, err := informers.GetInformer(ctx, kind)
	if err != nil {
		return fmt.Errorf("watch %T: %w", kind, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				changed()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch %T: %w", kind, err)
	}
	return nil
}

// newVersion says whether an update is one, and not a resync of the informer.
func newVersion(before, after any) bool {
	was, ok := before.(ctrlclient.Object)
	is, also := after.(ctrlclient.Object)
	return !ok || !also || was.GetResourceVersion() != is.GetResourceVersion()
}
