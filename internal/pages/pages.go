// Package pages reads lists of the API server page by page: whole ones, of all that peers have here,
// may be larger than the agent.
package pages

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Each calls f for each page of a list, so that a long one is never in memory as a whole.
func Each[L client.ObjectList](ctx context.Context, c client.Reader, newList func() L, f func(L) error, opts ...client.ListOption) error {
	next := ""
	for {
		list := newList()
		if err := c.List(ctx, list, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, opts...)...); err != nil {
			return err //nolint:wrapcheck // the caller says what it lists
		}
		if err := f(list); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// listWatch lists and then watches, with any client.
type listWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported keeps the reflector from asking for streamed
// lists, which not every client has.
func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// ListWatch lists page by page for an informer, and keeps of each object what keep leaves of it.
func ListWatch(c client.WithWatch, list func() client.ObjectList, keep cache.TransformFunc, opts ...client.ListOption) cache.ListerWatcher {
	return listWatch{&cache.ListWatch{
		// Without the options: lists from the API server's cache come whole.
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			all, items := list(), []runtime.Object(nil)
			err := Each(ctx, c, list, func(part client.ObjectList) error {
				all.SetResourceVersion(part.GetResourceVersion())
				return meta.EachListItem(part, func(item runtime.Object) error {
					_, err := keep(item)
					items = append(items, item.DeepCopyObject())
					return err
				})
			}, opts...)
			if err != nil {
				return nil, err
			}
			return all, meta.SetList(all, items)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list(), append(slices.Clip(opts), &client.ListOptions{Raw: &o})...)
		},
	}}
}
