// Package move moves the volume of a claim to another cluster: it copies it, has the copy verified,
// and binds a claim of the same name to it. All that it knows is in objects of the cluster, so
// that a command that was killed is gone on with by the next one:
//
//   - a ConfigMap, the record, says what is moved where, and what was found out on the way. It is
//     made first and deleted last;
//   - a claim of another name, with the new volume, until that has its own;
//   - two pods, of which one mounts either volume and one sends to the other.
//
// Next decides from what there is what to do next. In short: copy while the claim is as it was; lock it,
// by deleting it with a finalizer on it, so that no pod can begin to use it and no other claim can have
// its name; compare the volumes; reserve the new one for the name; let the name go; bind.
package move
