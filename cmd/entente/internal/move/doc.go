// Package move moves the volume of a claim to another cluster: it copies it, verifies the copy,
// and binds a claim of the same name to it. Its whole state is in objects of the cluster, so
// that the next command can continue after one that was killed:
//
//   - a ConfigMap, the record, says what is moved where, and what was found on the way. It is
//     created first and deleted last;
//   - a temporary claim that has the new volume at first;
//   - two pods, one for each volume; one sends to the other.
//
// Next decides the next step from these objects. In short: copy while the claim is unchanged; lock it,
// by deleting it with a finalizer on it, so that no pod can begin to use it and no other claim can have
// its name; compare the volumes; reserve the new one for the name; release the name; bind.
package move
