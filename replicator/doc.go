// Package replicator copies collections from one MongoDB deployment to others and keeps them in step.
//
// It promises: once a route is live and the source rests, every document of its namespaces that its filter selects is at the
// destination byte for byte, and no other (I9); changes of one document are applied in their order; a
// checkpoint never passes a change that is not applied or set aside as a dead letter (I2), never moves back, and moves also when
// nothing matches; a replay converges; a destination that is slow or dead delays no other (I6). Between documents there is no
// order: a reader of the destination may see a transaction in part.
//
// The package holds the logic and knows no server: Source, Target and Store say what it needs of one, and package
// replicator/mongodb has them for MongoDB. DESIGN.md says how, and why not more simply.
package replicator
